# SPDX-License-Identifier: Apache-2.0
"""LocalFS and HDFSClient of paddle.distributed.fleet.utils by libfleet.so (fleet_fs.h).

Errors are fleet.FleetError; the code is -2 for a path that does not exist (Paddle's
FSFileNotExistsError), -17 for one that exists (FSFileExistsError), -110 for a command that took too
long (FSTimeOut), -125 for one that aborted (FSShellCmdAborted).
"""
import ctypes

from fleet import _c, _call, _take

_c.fleet_fs_needs_transfer.restype = ctypes.c_bool


class _Names(ctypes.Structure):
    _fields_ = [("list", ctypes.POINTER(ctypes.c_char_p)), ("count", ctypes.c_size_t)]


class _Options(ctypes.Structure):
    _fields_ = [("hadoop_home", ctypes.c_char_p), ("settings", ctypes.POINTER(ctypes.c_char_p)),
                ("timeout_ms", ctypes.c_int), ("attempts", ctypes.c_int),
                ("pause_ms", ctypes.c_int)]


class FS:
    """The file system of a URL, such as s3://bucket or webhdfs://host:port/."""
    _fs = None

    def __init__(self, url, hadoop_home=None, configs=None, time_out=0, sleep_inter=0):
        settings = [f"{name}={value}".encode() for name, value in (configs or {}).items()]
        texts = (ctypes.c_char_p * (len(settings) + 1))(*settings, None)
        options = _Options(hadoop_home.encode() if hadoop_home else None, texts, time_out, 0,
                           sleep_inter)
        self._fs = ctypes.c_void_p()
        _call(_c.fleet_fs_open, url.encode(), ctypes.byref(options), ctypes.byref(self._fs))

    def __del__(self):
        _c.fleet_fs_free(self._fs)

    def ls_dir(self, path):
        """([folders], [files]): names, not paths."""
        folders, files = _Names(), _Names()
        _call(_c.fleet_fs_list, self._fs, path.encode(), ctypes.byref(folders), ctypes.byref(files))
        lists = tuple([one.list[i].decode() for i in range(one.count)] for one in (folders, files))
        _c.fleet_fs_names_release(ctypes.byref(folders))
        _c.fleet_fs_names_release(ctypes.byref(files))
        return lists

    def list_dirs(self, path):
        return self.ls_dir(path)[0]

    def is_exist(self, path):
        return _call(_c.fleet_fs_exists, self._fs, path.encode()) == 1

    def is_file(self, path):
        return _call(_c.fleet_fs_is_file, self._fs, path.encode()) == 1

    def is_dir(self, path):
        return _call(_c.fleet_fs_is_folder, self._fs, path.encode()) == 1

    def mkdirs(self, path):
        _call(_c.fleet_fs_make_folder, self._fs, path.encode())

    def delete(self, path):
        _call(_c.fleet_fs_delete, self._fs, path.encode())

    def mv(self, src_path, dst_path, overwrite=False):
        _call(_c.fleet_fs_move, self._fs, src_path.encode(), dst_path.encode(), overwrite)

    rename = mv

    def touch(self, path, exist_ok=True):
        _call(_c.fleet_fs_touch, self._fs, path.encode(), exist_ok)

    def upload(self, local_path, fs_path, overwrite=False):
        _call(_c.fleet_fs_upload, self._fs, local_path.encode(), fs_path.encode(), overwrite)

    upload_dir = upload

    def download(self, fs_path, local_path, overwrite=False):
        _call(_c.fleet_fs_download, self._fs, fs_path.encode(), local_path.encode(), overwrite)

    def cat(self, path, size_max=1 << 20):
        out, size = ctypes.c_void_p(), ctypes.c_size_t()
        _call(_c.fleet_fs_read, self._fs, path.encode(), ctypes.c_size_t(size_max),
              ctypes.byref(out), ctypes.byref(size))
        return _take(out, size.value).decode()

    def need_upload_download(self):
        return _c.fleet_fs_needs_transfer(self._fs)


class LocalFS(FS):
    def __init__(self):
        super().__init__("file:/")


class HDFSClient(FS):
    def __init__(self, hadoop_home, configs=None, time_out=300000, sleep_inter=1000):
        super().__init__("hdfs:", hadoop_home, configs, time_out, sleep_inter)

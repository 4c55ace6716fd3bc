# SPDX-License-Identifier: Apache-2.0
"""The examples of LocalFS and HDFSClient of Paddle's pages; hadoop is a script of the tests."""
import os
import tempfile

import fleet
import fleet_fs


def refused(code, function, *arguments):
    try:
        function(*arguments)
    except fleet.FleetError as error:
        assert error.code == code, error
        return
    raise AssertionError(function)


with tempfile.TemporaryDirectory() as folder:
    client = fleet_fs.LocalFS()
    at = os.path.join(folder, "test_mkdirs")
    client.mkdirs(at)
    client.mkdirs(at)
    assert client.ls_dir(folder) == (["test_mkdirs"], []) and client.list_dirs(at) == []
    client.touch(at + "/one")
    client.touch(at + "/one")
    refused(-17, client.touch, at + "/one", False)
    assert client.is_file(at + "/one") and client.is_dir(at) and not client.is_exist(at + "/no")
    client.rename(at + "/one", at + "/two")
    refused(-2, client.mv, at + "/one", at + "/three")
    client.touch(at + "/three")
    refused(-17, client.mv, at + "/two", at + "/three")
    client.mv(at + "/two", at + "/three", overwrite=True)
    with open(at + "/three", "w", encoding="utf-8") as file:
        file.write("text")
    assert client.cat(at + "/three") == "text" and not client.need_upload_download()
    client.delete(at)
    client.delete(at)
    assert client.ls_dir(at) == ([], [])

    os.makedirs(folder + "/hadoop/bin")
    with open(folder + "/hadoop/bin/hadoop", "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\necho "$@" >>{folder}/calls\n')
    os.chmod(folder + "/hadoop/bin/hadoop", 0o755)
    hdfs = fleet_fs.HDFSClient(folder + "/hadoop",
                               {"fs.default.name": "hdfs://xxx.hadoop.com:54310",
                                "hadoop.job.ugi": "hello,hello123"})
    assert hdfs.need_upload_download() and hdfs.is_exist("hdfs:/test_hdfs_client")
    calls = client.cat(folder + "/calls").splitlines()
    assert calls[0] == ("fs -Dfs.default.name=hdfs://xxx.hadoop.com:54310 "
                        "-Dhadoop.job.ugi=hello,hello123 -test -e hdfs:/test_hdfs_client"), calls
    refused(-22, fleet_fs.HDFSClient, "", {})
    refused(-22, fleet_fs.FS, "ftp://host/")

    # Not of Paddle: both are opened without a request.
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    assert fleet_fs.FS("s3://bucket", configs=keys).need_upload_download()
    assert fleet_fs.FS("webhdfs://127.0.0.1:9870/").need_upload_download()

"""Processes of a benchmark: their output, a time limit, and their end."""
import contextlib
import glob
import os
import signal
import subprocess


def text_of(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as failure:
        return f"{failure}"


@contextlib.contextmanager
def limit(seconds, act):
    """Calls act() if the block takes longer."""
    signal.signal(signal.SIGALRM, lambda *_: act())
    signal.setitimer(signal.ITIMER_REAL, max(1, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def below(pid, start_of_name=""):
    """Processes below `pid` with such a name."""
    found, parents = [], {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path) as file:
                text = file.read()
        except OSError:
            continue
        number, name = int(text.split(" ", 1)[0]), text[text.index("(") + 1:text.rindex(")")]
        parents[number] = (int(text[text.rindex(")") + 2:].split()[1]), name)
    for number, (above, name) in parents.items():
        while above in parents and above != pid:
            above = parents[above][0]
        if above == pid and name.startswith(start_of_name):
            found.append(number)
    return sorted(found)


def end(pid):
    """End a job with all its processes."""
    for number in [pid, *below(pid)]:
        try:
            os.kill(number, signal.SIGKILL)
        except OSError:
            pass

"""One fit per checkpoint: the second says so, and a killed one keeps nobody waiting."""

import signal
import subprocess
import sys
import threading

import pytest

from localw2.storage.lock import hold_file

HOLD = """
import sys
from localw2.storage.lock import hold_file

with hold_file(sys.argv[1]):
    print("held", flush=True)
    input()
"""


def start_holder(path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], **pipes)
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.posix
def test_another_process_is_told_of(tmp_path):
    path = tmp_path / "fit.ckpt"
    process = start_holder(path)
    with pytest.raises(ValueError, match=rf"in use.*process {process.pid}"), hold_file(path):
        pass
    process.communicate("\n")
    with hold_file(path):
        assert (tmp_path / "fit.ckpt.lock").exists()
    assert not any(tmp_path.iterdir())


@pytest.mark.posix
def test_a_killed_process_keeps_nobody_waiting(tmp_path):
    path = tmp_path / "fit.ckpt"
    process = start_holder(path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (tmp_path / "fit.ckpt.lock").exists()
    with hold_file(path):
        pass
    assert not any(tmp_path.iterdir())


def test_parts_of_one_fit_share_it_and_other_threads_do_not(tmp_path):
    path, said = tmp_path / "fit.ckpt", []

    def try_it(inside):
        try:
            with hold_file(path, inside):
                said.append("held")
        except ValueError as error:
            said.append(str(error))

    with hold_file(path):
        with hold_file(path):
            pass
        for inside in (True, False):
            thread = threading.Thread(target=try_it, args=(inside,))
            thread.start()
            thread.join()
    assert said[0] == "held"
    assert "in use" in said[1]


def test_a_file_of_somebody_else_stays(tmp_path):
    (tmp_path / "fit.ckpt.lock").write_text("mine")
    with hold_file(tmp_path / "fit.ckpt"):
        pass
    assert (tmp_path / "fit.ckpt.lock").read_text() == "mine"

"""Programs that the scripts of ./dev gpu start. What does not end in time is killed, and what does not end then either,
as it waits for the driver of a GPU, is left behind and told: nothing waits for a program without a limit but one that
was given none. And files that are whole whenever they are looked at."""

import dataclasses
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

GRACE = 10  # seconds for a program to end that was killed
LAST_WORDS = 5  # and for one that was asked to end
left_behind = []  # "name (process 123)" of those that did not


def end(program, whole_session=False):
    """Kills a program, or all of the session that it began; whether it has ended."""
    try:
        if whole_session:
            os.killpg(program.pid, signal.SIGKILL)
        else:
            program.kill()
    except ProcessLookupError:
        pass
    try:
        program.wait(GRACE)
    except subprocess.TimeoutExpired:
        left_behind.append(f"{os.path.basename(program.args[0])} (process {program.pid})")
        return False
    return True


@dataclasses.dataclass(frozen=True)
class Ended:
    """What a program wrote; code: None of one that did not end in time."""

    code: object
    out: str
    said: str
    pid: int


def finished(command, seconds=None, env=None):
    """Runs a program. Its words go through files: whoever holds a pipe open is waited for."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        # pylint: disable=consider-using-with
        program = subprocess.Popen(command, stdout=out, stderr=said, stdin=subprocess.DEVNULL, env=env)
        code = None
        try:
            code = program.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if code is None:
                end(program)
        return Ended(code, text_of(out), text_of(said), program.pid)


def text_of(file):
    file.seek(0)
    return file.read().decode(errors="replace")


def last_word(code, said):
    nothing = "it did not end when it was killed" if code is None else f"exit code {code}"
    return (said.strip().splitlines() or [nothing])[-1]


def run(command, seconds=None, env=None):
    """(output, None), or (None, what it said last)."""
    try:
        done = finished(command, seconds, env)
    except OSError as error:
        return None, str(error)
    if done.code is None:
        return None, f"stopped after {seconds:.0f} s: out of time"
    if done.code != 0:
        return None, last_word(done.code, done.said or done.out)
    return done.out, None


class Lines:
    """The lines of a program as they come."""

    def __init__(self, command):
        self.said = tempfile.TemporaryFile()  # pylint: disable=consider-using-with
        try:
            # pylint: disable=consider-using-with
            self.program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.said, stdin=subprocess.DEVNULL)
        except OSError:
            self.said.close()
            raise
        self.waiting = b""

    def next(self, seconds):
        """One line; None: there is no more, or not within these seconds."""
        end_of_wait = time.monotonic() + min(seconds, 1e6)
        while b"\n" not in self.waiting:
            ready, _, _ = select.select([self.program.stdout], [], [], max(0, end_of_wait - time.monotonic()))
            block = os.read(self.program.stdout.fileno(), 1 << 16) if ready else b""
            if not block:
                return None
            self.waiting += block
        line, self.waiting = self.waiting.split(b"\n", 1)
        return line.decode()

    def close(self):
        """Ends the program: (its exit code, None if it could not be ended; all that it said)."""
        self.program.terminate()
        try:
            self.program.wait(LAST_WORDS)
        except subprocess.TimeoutExpired:
            end(self.program)
        self.program.stdout.close()
        with self.said:
            return self.program.returncode, text_of(self.said)


def lines_of(command, seconds=None, log=None, keep=None):
    """(the JSON documents that it wrote, a line each, None), or what there was until it failed and what it said. keep:
    is given each as it comes. The lines of stderr are added to log."""
    try:
        lines = Lines(command)
    except OSError as failure:
        return [], str(failure)
    rows, limit = [], float("inf") if seconds is None else time.monotonic() + seconds
    code, said = None, ""
    try:
        while (line := lines.next(limit - time.monotonic())) is not None:
            if line.startswith("{"):
                rows.append(json.loads(line))
                if keep is not None:
                    keep(rows[-1])
        late = time.monotonic() >= limit
        if not late:  # it has written all; its exit code is to come
            try:
                code = lines.program.wait(GRACE)
            except subprocess.TimeoutExpired:
                late = True
    finally:
        ended, said = lines.close()
    if log is not None:
        log += said.splitlines()
    if late:
        return rows, f"stopped after {seconds:.0f} s" if seconds is not None else "it did not end"
    return rows, None if code == 0 else last_word(ended, said)


def write_whole(path, text, copies=None):
    """A file, and its copy in the folder `copies`: what was there, or all of the text, never a part of it."""
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.part", path)
    copy(path, copies)


def copy(path, folder):
    """Into the folder, where one is named. One that takes no file is no reason to measure nothing."""
    if not folder:
        return
    to = os.path.join(folder, os.path.basename(path))
    try:
        os.makedirs(folder, exist_ok=True)
        shutil.copyfile(path, f"{to}.part")
        os.replace(f"{to}.part", to)
    except OSError as error:
        print(f"no copy of {path}: {error}", file=sys.stderr)

"""When which part of a log was written, kept beside it."""

from __future__ import annotations

from pathlib import Path

from presage.executors.node.log_times import LogTimes, read_times, time_of, times_beside


def test_a_byte_has_the_time_at_which_it_was_first_seen(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    times = LogTimes(log)
    for size, now in ((0, 100.0), (10, 101.0), (10, 102.0), (30, 103.0), (31, 103.2)):
        times.note(size, now)
    sizes, at = read_times(times_beside(log))
    assert sizes == [0, 10, 30]
    assert [time_of(offset, sizes, at) for offset in (0, 9, 10, 29, 30)] == [
        101.0,
        101.0,
        103.0,
        103.0,
        None,
    ]


def test_another_process_continues_and_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    LogTimes(log).note(10, 100.0)
    LogTimes(log).note(20, 105.0)
    with times_beside(log).open("a") as file:
        file.write("3x")
    assert read_times(times_beside(log)) == ([0, 10, 20], [100.0, 100.0, 105.0])
    LogTimes(tmp_path / "none.log").note(0, 1.0)
    assert read_times(times_beside(tmp_path / "none.log")) == ([0], [1.0])


def test_the_file_stays_small_in_a_run_of_many_days(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    times = LogTimes(log)
    for second in range(0, 10 * 86_400, 60):
        times.note(second + 1, 1e9 + second)
    assert len(read_times(times_beside(log))[0]) < 8000


def test_a_log_that_is_cut_or_begins_again_keeps_the_times_of_the_rest(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    times = LogTimes(log)
    for size, now in ((10, 101.0), (20, 102.0), (30, 103.0)):
        times.note(size, now)
    times.cut(15, 4)
    assert read_times(times_beside(log)) == ([0, 9, 19], [101.0, 102.0, 103.0])
    times.note(25, 104.0)
    assert read_times(times_beside(log))[0][-1] == 25
    times.note(3, 110.0)
    assert read_times(times_beside(log)) == ([0, 3], [110.0, 110.0])

"""Take the recording machine out of a trace and keep every time as it was.

    python scrub.py raw.pt.trace.json.gz clean.pt.trace.json.gz
    python scrub.py raw.sqlite clean.sqlite.gz
    python scrub.py --no-stacks raw.pt.trace.json.gz clean.pt.trace.json.gz

Kineto: paths become module paths, object addresses and unused arguments go, the epoch is set to EPOCH_NS.
Nsight Systems: environment, command line, host, other processes and program output go; the epoch is set to EPOCH_NS.
Fails if a time changed or if a path or a host name is left.
"""

import argparse
import gzip
import json
import re
import shutil
import sqlite3
import tempfile
from decimal import Decimal
from pathlib import Path

EPOCH_NS = 1_790_000_000_000_000_000
EPOCH_TEXT = "2026-09-21T14:13:20"

PACKAGE_FOLDER = re.compile(r"/[^\s\"']*/(?:(?:site|dist)-packages|python3\.\d+)/")
ABSOLUTE_PATH = re.compile(r"(?<![\w.)>&*~/])/(?:[\w.+-]+/)+([\w.+-]*)")
OBJECT_ADDRESS = re.compile(r" (?:object )?at 0x[0-9a-f]+")
LEAK = re.compile(rb"(?<![\w.)>&*~/])/[a-z][\w.+-]*/[\w.+-]+|hostname|host_name|token=|key=", re.IGNORECASE)

UNUSED_ARGS = {
    *("Record function id", "Ev Idx", "Sequence number", "Fwd thread id", "cbid", "queued", "warps per SM"),
    *("blocks per SM", "est. achieved occupancy %", "memory bandwidth (GB/s)"),
    *("Concrete Inputs", "Input Dims", "Input Strides", "Input type"),
}
UNUSED_KEYS = {"trace_id", "host_name"}

KEPT_ENVIRONMENT = {"CpuCores", "CpuArchitecture", "NvDriverVersion", "CudaDriverVersion"}
KEPT_CAPTURE = re.compile(
    r"CAPTURE_EVENT_TYPE|RATE_HZ|START_TRIGGER|STOP_TRIGGER|DEVICE_TYPE|RUN_DURATION_MS|START_DELAY_MS"
    r"|PROCESS_\d+:(?:COLLECT|CUDA)_.*|NVTX_OPTIONS:.*"
)
DROPPED_EXPORT = re.compile(r"EXPORT_(?:HOST|USER|TIME.*|PARAM_.*(?:FILE|PATH).*)")
DROPPED_TABLES = ["ANALYSIS_FILE", "ProcessStreams", "DIAGNOSTIC_EVENT"]


def shorten(text):
    """`/usr/lib/python3.12/site-packages/torch/nn/modules/module.py(1): f` -> `torch/nn/modules/module.py(1): f`."""
    return ABSOLUTE_PATH.sub(r"\1", PACKAGE_FOLDER.sub("", text))


def scrub_event(event):
    """One Kineto event without machine paths, object addresses and arguments that no analysis reads."""
    event = dict(event, name=OBJECT_ADDRESS.sub("", shorten(event["name"])))
    if "args" in event:
        event["args"] = {key: value for key, value in event["args"].items() if key not in UNUSED_ARGS}
    return event


def kineto_times(text, stacks=True):
    """(ts, dur) of every event, as exact decimals."""
    events = kept(json.loads(text, parse_float=Decimal)["traceEvents"], stacks)
    return [(event.get("ts"), event.get("dur")) for event in events]


def kept(events, stacks):
    return [event for event in events if stacks or event.get("cat") != "python_function"]


def scrub_kineto(source, target, stacks=True):
    """Write the clean Kineto trace, one event per line."""
    opener = gzip.open if source.suffix == ".gz" else open
    with opener(source, "rt", encoding="utf-8") as file:
        raw = file.read()
    trace = {key: value for key, value in json.loads(raw).items() if key not in UNUSED_KEYS}
    events = [scrub_event(event) for event in kept(trace.pop("traceEvents"), stacks)]
    trace.update(baseTimeNanoseconds=EPOCH_NS, traceName=target.name.removesuffix(".gz"))
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    clean = f'{json.dumps(trace)[:-1]},\n"traceEvents":[\n{lines}\n]}}\n'
    if kineto_times(clean) != kineto_times(raw, stacks):
        raise SystemExit(f"{source}: scrubbing changed a time")
    write_gzip(target, clean.encode())


def tables(db):
    return [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]


def columns(db, table):
    return [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]


def sqlite_times(db):
    """{table: sorted (start, end)} of every event table that is kept."""
    timed = [name for name in tables(db) if {"start", "end"} <= set(columns(db, name))]
    return {name: db.execute(f'SELECT start, "end" FROM "{name}" ORDER BY 1, 2').fetchall() for name in timed}


def delete_unless(db, table, column, keep):
    """Delete the rows of `table` whose `column` fails the predicate `keep`."""
    if table in tables(db):
        values = [value for (value,) in db.execute(f'SELECT DISTINCT "{column}" FROM "{table}"')]
        dropped = [(value,) for value in values if not keep(value)]
        db.executemany(f'DELETE FROM "{table}" WHERE "{column}" = ?', dropped)


def recorded_processes(db):
    """The globalPids that made CUDA calls."""
    calls = db.execute("SELECT DISTINCT globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    return {tid & ~0xFFFFFF for (tid,) in calls}


def drop_machine_rows(db):
    """Environment, command line, host, other processes and the program's own output."""
    for name in set(DROPPED_TABLES) & set(tables(db)):
        db.execute(f'DELETE FROM "{name}"')
    processes = recorded_processes(db)
    delete_unless(db, "PROCESSES", "globalPid", processes.__contains__)
    delete_unless(db, "ThreadNames", "globalTid", lambda tid: tid & ~0xFFFFFF in processes)
    delete_unless(db, "TARGET_INFO_SYSTEM_ENV", "name", KEPT_ENVIRONMENT.__contains__)
    delete_unless(db, "META_DATA_CAPTURE", "name", KEPT_CAPTURE.fullmatch)
    delete_unless(db, "META_DATA_EXPORT", "name", lambda name: not DROPPED_EXPORT.fullmatch(name))


def referred_strings(db):
    """Ids of StringIds that some remaining row uses, by the columns declared to refer to it."""
    used = set()
    for name, ddl in db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall():
        for column in re.findall(r"(\w+)[^\n]*REFERENCES StringIds", ddl):
            used |= {value for (value,) in db.execute(f'SELECT DISTINCT "{column}" FROM "{name}"')}
    return used


def clean_strings(db):
    """Keep the strings that events use, with paths shortened, also those of the programs."""
    delete_unless(db, "StringIds", "id", referred_strings(db).__contains__)
    for table, column in (("StringIds", "value"), ("PROCESSES", "name")):
        for key, value in db.execute(f"SELECT rowid, {column} FROM {table}").fetchall():
            db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (shorten(value), key))


def set_epoch(db):
    values = (EPOCH_NS, EPOCH_TEXT, EPOCH_TEXT)
    db.execute("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = ?, utcTime = ?, localTime = ?", values)
    db.execute("UPDATE TARGET_INFO_GPU SET uuid = ''")


def scrub_sqlite(source, target):
    """Write the clean Nsight Systems export, compressed."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(source, Path(folder) / "copy.sqlite")
        db = sqlite3.connect(copy)
        drop_machine_rows(db)
        clean_strings(db)
        set_epoch(db)
        db.commit()
        db.execute("VACUUM")
        if compare_times(source, db):
            raise SystemExit(f"{source}: scrubbing changed a time in {compare_times(source, db)}")
        db.close()
        write_gzip(target, copy.read_bytes())


def compare_times(source, db):
    """Event tables whose times differ from the source's."""
    before, after = sqlite_times(sqlite3.connect(source)), sqlite_times(db)
    return [name for name in before if before[name] != after[name]]


def write_gzip(target, data):
    """Refuse what still names the machine; no time stamp in the gzip header."""
    found = sorted(set(LEAK.findall(data)))[:5]
    if found:
        raise SystemExit(f"{target}: still contains {found}")
    target.write_bytes(gzip.compress(data, compresslevel=9, mtime=0))
    print(f"{target.name}: {target.stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="raw recording: Kineto JSON, plain or .gz, or Nsight Systems .sqlite")
    parser.add_argument("target", type=Path, help="clean recording to write, ending in .gz")
    parser.add_argument("--no-stacks", dest="stacks", action="store_false", help="leave Python frames out")
    args = parser.parse_args()
    if args.source.suffix == ".sqlite":
        scrub_sqlite(args.source, args.target)
    else:
        scrub_kineto(args.source, args.target, args.stacks)


if __name__ == "__main__":
    main()

"""Checks the record of a Drover server without the server: Python 3 and nothing else.

  drover audit list --limit 100000 --json > rows.json
  python3 check_record.py rows.json

Of one call, whose commitments GET /api/v1/calls/{call_id}/commitments has answered, it also
checks that its arguments and its result are those that the record commits to. They're taken
from the answer where it has them, or from files that hold the exact bytes:

  python3 check_record.py rows.json --call commitments.json [--args FILE] [--result FILE]

It prints what's wrong, and ends with 1 then. docs/security.md says what this proves.
"""

import argparse
import base64
import hashlib
import json
import sys


def check_row(row):
    """What's wrong with a row: its leaf is SHA-256(0x00 || exact)."""
    exact = row["exact"].encode()
    leaf = base64.urlsafe_b64decode(row["leaf"] + "=" * (-len(row["leaf"]) % 4))
    if hashlib.sha256(b"\0" + exact).digest() != leaf:
        return ["its bytes are not those of its leaf"]
    body = json.loads(exact)
    wrong = ["body is not what its bytes say"] if row["body"] != body else []
    for name in ("id", "at", "kind", "call_id"):
        if row.get(name, "") != body.get(name, ""):
            wrong.append(name + " is not what its bytes say")
    return wrong


def check_commitment(rows, call, kind, given):
    """What's wrong with a commitment, which is SHA-256(salt || exact), and what was checked."""
    recorded = [json.loads(r["exact"])["commitment"] for r in rows if r["kind"] == kind and r.get("call_id") == call["call_id"]]
    said = call["args" if kind == "intent" else "result"]
    if recorded != [said["commitment"]]:
        return ["the record's %s of this call commits to something else, or is not among the rows" % kind], ""
    exact = given if given is not None else said.get("exact", "").encode()
    if "salt" not in said or not exact:
        return [], "not checked: the salt or the exact bytes are missing"
    if hashlib.sha256(bytes.fromhex(said["salt"]) + exact).hexdigest() != recorded[0]:
        return ["these are not the bytes that the record commits to"], ""
    return [], "these are the %d bytes that the record commits to" % len(exact)


def main():
    files = argparse.ArgumentParser(description="Checks the record of a Drover server.")
    files.add_argument("rows")
    files.add_argument("--call")
    files.add_argument("--args")
    files.add_argument("--result")
    files = files.parse_args()

    def read(name):
        with open(name, "rb") as f:
            return f.read()

    rows = json.loads(read(files.rows))["rows"]
    found = 0
    for row in rows:
        for wrong in check_row(row):
            print("row %s: %s" % (row["id"], wrong))
            found += 1
    if files.call:
        call = json.loads(read(files.call))
        for kind, name, file in ("intent", "args", files.args), ("outcome", "result", files.result):
            if name not in call:
                continue
            wrong, checked = check_commitment(rows, call, kind, read(file) if file else None)
            for text in wrong or [checked]:
                print("call %s, %s: %s" % (call["call_id"], name, text))
            found += len(wrong)
    print("%d rows, %d differences" % (len(rows), found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Applies small mistakes to the program, one at a time, and reports which of them the tests miss.

    scripts/mutate.py                     every mutation of scripts/mutations.json
    scripts/mutate.py --list              their names, and what each of them breaks
    scripts/mutate.py --check             only whether every text stands in the tree; builds nothing
    scripts/mutate.py --only NAME         one of them (may be repeated; * and ? match as in file names)
    scripts/mutate.py --work FOLDER       keep the copy and its build in FOLDER, for the next time

Works on a copy of the tree (a git worktree of the tracked files as they are now) with a build folder of its own: the tree itself is
never touched. A mutation names files, a text that stands there exactly once and what takes its place, and the tests that should
notice. Exit code: 0 when every mutation was noticed, 1 when some survived, 2 when the list or the tree is not fit for it.
"""
import argparse
import fnmatch
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEST_SECONDS = 1200  # a test that takes longer has been caught in a loop: it noticed


class Unfit(Exception):
    """The list and the tree do not fit together, or the tests fail without any mutation."""


def run(command, cwd, **options):
    return subprocess.run(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)


def must(command, cwd, what):
    done = run(command, cwd)
    if done.returncode != 0:
        raise Unfit(f"{what} failed:\n{done.stdout[-4000:]}")
    return done.stdout


def read_list(only):
    mutations = json.loads((ROOT / "scripts/mutations.json").read_text())
    names = [m["name"] for m in mutations]
    for name in names:
        if names.count(name) > 1:
            raise Unfit(f"scripts/mutations.json: expected one mutation called {name}, got {names.count(name)}")
    for pattern in only:
        if not fnmatch.filter(names, pattern):
            raise Unfit(f"no mutation is called {pattern} (--list shows them)")
    return [m for m in mutations if not only or any(fnmatch.fnmatch(m["name"], p) for p in only)]


def mutated(tree, mutation):
    """The files a mutation changes: path -> (text before, text after)."""
    files = {}
    for edit in mutation["edits"]:
        path = tree / edit["file"]
        if not path.is_file():
            raise Unfit(f"{mutation['name']}: {edit['file']} does not exist")
        original, text = files.get(path, (path.read_text(),) * 2)
        count = text.count(edit["before"])
        if count != 1:
            raise Unfit(f"{mutation['name']}: expected the text once in {edit['file']}, found it {count} times:\n{edit['before']}")
        files[path] = (original, text.replace(edit["before"], edit["after"]))
    return files


def check_list(mutations):
    """Whether every mutation fits the tree; says which do not."""
    unfit = 0
    for m in mutations:
        try:
            mutated(ROOT, m)
        except Unfit as problem:
            print(f"mutate: {problem}", file=sys.stderr)
            unfit += 1
    print(f"{len(mutations) - unfit} of {len(mutations)} mutations fit the tree")
    return 2 if unfit else 0


def make_tree(tree):
    """A worktree of what is tracked, with changes that are not committed yet."""
    run(["git", "update-index", "-q", "--refresh"], ROOT)  # a copied tree's files look changed until git has looked
    commit = must(["git", "stash", "create"], ROOT, "git stash create").strip() or "HEAD"
    commit = must(["git", "rev-parse", commit], ROOT, "git rev-parse").strip()
    if (tree / ".git").exists():
        must(["git", "checkout", "--force", "--detach", commit], tree, "git checkout")
    else:
        must(["git", "worktree", "add", "--force", "--detach", str(tree), commit], ROOT, "git worktree add")


def remove_tree(tree):
    run(["git", "worktree", "remove", "--force", str(tree)], ROOT)
    shutil.rmtree(tree, ignore_errors=True)
    run(["git", "worktree", "prune"], ROOT)


def build(tree, targets, jobs):
    return run(["cmake", "--build", "build/release", "-j", str(jobs), "--target", *sorted(targets)], tree)


def test_command(test):
    return [f"build/release/tests/{test['target']}", f"--gtest_filter={test['filter']}", "--gtest_brief=1"]


def failing(tree, tests):
    """The first test that fails, as text, or None."""
    for test in tests:
        try:
            done = run(test_command(test), tree, timeout=TEST_SECONDS)
        except subprocess.TimeoutExpired:
            return f"{test['target']} did not end"
        if done.returncode != 0:
            failed = [line.split("]", 1)[1].split("(")[0].strip() for line in done.stdout.splitlines() if line.startswith("[  FAILED  ]")]
            return failed[0] if failed else f"{test['target']} ended with {done.returncode}"
    return None


def check_tests(tree, mutations, jobs):
    """Without a mutation everything builds and passes, and every filter finds a test."""
    tests = {(t["target"], t["filter"]): t for m in mutations for t in m["tests"]}
    done = build(tree, {target for target, _ in tests}, jobs)
    if done.returncode != 0:
        raise Unfit(f"the tree does not build:\n{done.stdout[-4000:]}")
    for test in tests.values():
        if not run(test_command(test) + ["--gtest_list_tests"], tree).stdout.strip():
            raise Unfit(f"{test['target']} has no test {test['filter']}")
        failed = failing(tree, [test])
        if failed:
            raise Unfit(f"fails without any mutation: {failed}")


def try_mutation(tree, mutation, jobs):
    """'caught …', or 'SURVIVED'."""
    files = mutated(tree, mutation)
    try:
        for path, (_, text) in files.items():
            path.write_text(text)
        done = build(tree, {t["target"] for t in mutation["tests"]}, jobs)
        if done.returncode != 0:
            raise Unfit(f"{mutation['name']} does not build:\n{done.stdout[-4000:]}")
        failed = failing(tree, mutation["tests"])
        return f"caught by {failed}" if failed else "SURVIVED"
    finally:
        for path, (original, _) in files.items():
            path.write_text(original)


def fits(mutation):
    return mutation.get("machine", platform.machine()) == platform.machine()


def mutate(mutations, tree, jobs):
    make_tree(tree)
    for m in mutations:
        mutated(tree, m)  # all of them fit, before anything is built
    here = [m for m in mutations if fits(m)]
    must(["cmake", "--preset", "release", "-DBHYT_BENCH=OFF"], tree, "cmake")
    print(f"{len(here)} mutations; first the tests as they are", flush=True)
    check_tests(tree, here, jobs)
    survivors = 0
    for m in mutations:
        result = try_mutation(tree, m, jobs) if fits(m) else f"not tried: needs {m['machine']}"
        survivors += result == "SURVIVED"
        print(f"{m['name']:<40} {result}", flush=True)
    print(f"{survivors} of {len(here)} survived")
    return 1 if survivors else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the mutations and end")
    parser.add_argument("--check", action="store_true", help="only whether every mutation fits the tree; builds nothing")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--work", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    try:
        mutations = read_list(arguments.only)
        if arguments.list:
            for m in mutations:
                print(f"{m['name']:<40} {', '.join(e['file'] for e in m['edits'])}; {', '.join(t['target'] for t in m['tests'])}")
            return 0
        if arguments.check:
            return check_list(mutations)
        tree = (arguments.work or pathlib.Path(tempfile.mkdtemp(prefix="bhyt-mutate-")) / "tree").resolve()
        try:
            return mutate(mutations, tree, arguments.jobs)
        finally:
            if not arguments.work:
                remove_tree(tree)
                shutil.rmtree(tree.parent, ignore_errors=True)
    except Unfit as problem:
        print(f"mutate: {problem}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

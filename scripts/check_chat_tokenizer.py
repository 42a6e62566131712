#!/usr/bin/env python3
"""Loads tokenizers that `bhyt sft` saves with Hugging Face transformers and compares the conversations that both write.

For every tokenizer and template: the text of apply_chat_template must be that of the ids that the program trains on, and its ids (of the text as
a whole) must begin with the same token; the end token must end every example, be eos and pad, and have the id that the program gives it.

usage: check_chat_tokenizer.py --bhyt build/bhyt [--tokenizers bytes DIR ...] [--templates NAME|FILE.yaml ...]      (needs transformers)
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import transformers

TALKS = [
    [("user", "Hello"), ("assistant", "Hi there!")],
    [("system", "You're brief."), ("user", "it's 7 o'clock\n"), ("assistant", " yes"), ("user", "sure? <|im_end|> é✓"), ("assistant", "")],
]
OWN = """
prefix: ["{bos}", "it's \\\\ mine\\n"]
system: ["<sys>{c}", "{eos}"]
user: ["<|u|>{c}", "{eos}", "<|a|>"]
answer: ["{c}", "{eos}", "\\n"]
default_system: don't
tokens: ["<|end|>", "<|u|>"]
"""


def check(bhyt, tokenizer, template, folder):
    """What differs, or nothing."""
    records, dump, saved = folder / "talks.jsonl", folder / "dump.jsonl", folder / "tokenizer"
    talks = [[{"role": role, "content": content} for role, content in talk] for talk in TALKS]
    records.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    subprocess.run([bhyt, "sft", "--dry-run", f"data.train={records}", f"data.tokenizer={tokenizer}", f"data.template={template}", "--dump", dump,
                    "--save-tokenizer", saved], check=True, capture_output=True)
    theirs = transformers.AutoTokenizer.from_pretrained(saved)
    generation = json.loads((saved / "generation_config.json").read_text())
    if theirs.eos_token_id is None or theirs.pad_token_id != theirs.eos_token_id or theirs.eos_token_id not in generation["eos_token_id"]:
        return f"eos {theirs.eos_token}, pad {theirs.pad_token}, stops {generation['eos_token_id']}"
    for talk, line in zip(talks, dump.read_text().splitlines()):
        ids = json.loads(line)["input_ids"]
        want = theirs.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        text = theirs.apply_chat_template(talk, tokenize=False)
        if text != want:
            return f"{text!r} is not {want!r}"
        if theirs(text, add_special_tokens=False)["input_ids"][0] != ids[0] or theirs.eos_token_id not in ids[-3:]:
            return f"ids of {text!r}"
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bhyt", required=True)
    parser.add_argument("--tokenizers", nargs="*", default=["bytes"])
    parser.add_argument("--templates", nargs="*", default=["default", "alpaca", "llama3", "chatml", "plain"])
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}")
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        (folder / "own.yaml").write_text(OWN)
        for tokenizer in args.tokenizers:
            for template in [*args.templates, str(folder / "own.yaml")]:
                wrong = check(args.bhyt, tokenizer, template, folder)
                failed += bool(wrong)
                print(f"{pathlib.Path(tokenizer).name:12} {pathlib.Path(template).name:12} {'FAILED ' + wrong if wrong else 'same'}", flush=True)
    sys.exit(f"{failed} failed" if failed else 0)


if __name__ == "__main__":
    main()

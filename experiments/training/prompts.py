#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cuts the shipped prompt sets from documents the checkpoint was not trained on.

Reads {domain}.heldout.jsonl from --data (made by corpus.py). Writes {en,zh,code,qa}.txt, one
prompt a line (line breaks become spaces), and mixed.jsonl, the same prompts round robin over the
domains with their line breaks. Lengths spread over 8 to 60 words (Chinese: 12 to 95 characters).
"""
import argparse
import hashlib
import json
import re
from pathlib import Path

COUNT = 32
# Sources in the order they are drawn from, with the most prompts each may give.
SHARES = {
    "en": [("dict-foldoc", 20), ("dict-gcide", 12)],
    "zh": [("fortunes-zh", 16), ("manpages-zh", 14), ("debian-reference-zh-cn", 6)],
    "code": [("libstdc++-12-dev", 19), ("libpython3.11-stdlib", 19)],
    "qa": [("debian-faq", 5), ("perl-doc", 13), ("anarchism", 14)],
}


def digest(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def first_words(text, count):
    """The first `count` words, white space kept."""
    match = re.match(r"\s*(?:\S+\s+){%d}\S+" % (count - 1), text)
    return match.group(0).strip() if match else None


def chinese_share(text):
    return sum("\u4e00" <= c <= "\u9fff" for c in text) / max(1, len(text))


def cut(domain, text, wanted):
    """A prompt of about `wanted` words from the start of a document, or None."""
    if domain == "zh":
        if re.search(r"--|——|毛泽东", text):  # quotations whose authors may still have rights
            return None
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        while lines and chinese_share(lines[0]) < 0.6:
            lines.pop(0)
        text = "\n".join(lines)
        limit = 16 + (wanted - 8) * 3 // 2
        end = max((m.end() for m in re.finditer(r"[，。！？；：]", text[:limit])), default=0)
        piece = text[:end].strip() if end >= 12 else text[:limit].strip()
        return piece if len(piece) >= 12 and chinese_share(piece) > 0.5 else None
    if domain == "code":
        # Begin at a function, class or template, where a person would ask for a completion.
        for match in re.finditer(r"(?m)^ *(?:def |class |template *<|struct |@|inline )", text):
            lines, words = [], 0
            for line in text[match.start():].split("\n"):
                lines.append(line.rstrip())
                words += len(line.split())
                if words >= wanted:
                    break
            piece = "\n".join(lines).strip("\n")
            if 8 <= words <= 60 and len(piece) < 700:
                return piece
        return None
    if domain == "qa":
        question = text.split("\n\nA: ")[0]
        if len(question.split()) >= max(8, wanted - 10):
            return f"{question}\n\nA:"
        return first_words(text, wanted)
    return first_words(text, wanted)


def one_line(text):
    return re.sub(r"\s+", " ", text).strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder written by corpus.py")
    parser.add_argument("--out", type=Path, required=True, help="scenarios/prompts")
    options = parser.parse_args()
    sets = {}
    for domain, shares in SHARES.items():
        with open(options.data / f"{domain}.heldout.jsonl") as stream:
            documents = [json.loads(line) for line in stream]
        prompts = []
        assert sum(share for _, share in shares) >= COUNT
        for source, share in shares:
            taken = 0
            for document in sorted((d for d in documents if d["source"] == source),
                                   key=lambda d: digest("prompt" + d["text"])):
                wanted = 8 + (len(prompts) * 29 + 20) % 53
                text = cut(domain, document["text"], wanted)
                if text and taken < share and text not in prompts:
                    prompts.append(text)
                    taken += 1
        sets[domain] = prompts[:COUNT]
        assert len(sets[domain]) == COUNT, (domain, len(sets[domain]))
        lines = "\n".join(one_line(p) for p in sets[domain])
        (options.out / f"{domain}.txt").write_text(lines + "\n")
    with open(options.out / "mixed.jsonl", "w") as stream:
        for n in range(COUNT):
            for domain, prompts in sets.items():
                stream.write(json.dumps({"id": f"{domain}-{n:02}", "domain": domain,
                                         "text": prompts[n]}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collects the training text of the shipped checkpoint from Debian packages.

Four domains: en (encyclopaedic English), zh (Chinese), code (C++ and Python), qa (question and
answer). Packages are fetched with `apt-get download` and unpacked with `dpkg-deb -x` into a scratch
folder; nothing is installed. Output in --out:

    {en,zh,code,qa}.train.jsonl      one document a line: {"text", "source"}
    {en,zh,code,qa}.heldout.jsonl    about 2 % of the documents, chosen by a hash of the text
    manifest.json                    package, version, documents and bytes per domain

The choice of documents depends on their text only: the same package versions give the same files.
"""
import argparse
import gzip
import hashlib
import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

# package -> licence of the text used, as its debian/copyright says.
PACKAGES = {
    "anarchism": "GPL-2",
    "dict-foldoc": "GFDL-1.1+, no invariant sections",
    "dict-gcide": "GPL-2+",
    "dict-jargon": "public domain",
    "fortunes-zh": "GPL-3+",
    "debian-reference-zh-cn": "GPL-2+",
    "debian-faq-zh-cn": "own copyleft notice (copies and changes under the same notice)",
    "maint-guide-zh-cn": "GPL-2+",
    "debian-edu-doc-zh-cn": "GPL-2+",
    "manpages-zh": "GFDL-1.2+, GPL-2+ and others per page",
    "libstdc++-12-dev": "GPL-3+ with GCC Runtime Library Exception",
    "libpython3.11-stdlib": "PSF-2.0",
    "debian-faq": "own copyleft notice (copies and changes under the same notice)",
    "perl-doc": "GPL-1+ or Artistic",
}

# Upper bound in bytes per (domain, package), so that no source drowns the others.
LIMITS = {
    ("en", "dict-foldoc"): 2_400_000,
    ("en", "dict-gcide"): 2_000_000,
    ("en", "dict-jargon"): 700_000,
    ("zh", "manpages-zh"): 2_600_000,
    ("code", "libstdc++-12-dev"): 2_400_000,
    ("code", "libpython3.11-stdlib"): 2_400_000,
    ("qa", "anarchism"): 3_200_000,
    ("qa", "perl-doc"): 1_200_000,
}

HELDOUT_ONE_IN = 48


def digest(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def read_text(path):
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return data.decode("utf-8", errors="ignore")


def tidy(text):
    text = text.replace("\r\n", "\n").replace("\x00", "").replace("\u00a0", " ")
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def chunks(text, size):
    """Cuts at blank lines into documents of about `size` characters."""
    parts, held = [], ""
    for block in text.split("\n\n"):
        if held and len(held) + len(block) > size:
            parts.append(held)
            held = ""
        held = f"{held}\n\n{block}" if held else block
    if held:
        parts.append(held)
    return parts


def cjk_share(text):
    visible = [c for c in text if not c.isspace()]
    return sum("\u4e00" <= c <= "\u9fff" for c in visible) / max(1, len(visible))


def dict_entries(text):
    """dictd entries: an unindented headword line, then indented lines."""
    for entry in re.split(r"\n(?=[^\s\[{])", text):
        yield entry


def foldoc(root):
    text = read_text(root / "usr/share/dictd/foldoc.dict.dz")
    for entry in dict_entries(text):
        entry = re.sub(r"\{([^{}]*)\}", r"\1", entry)
        entry = re.sub(r"\n\s*\(\d{4}-\d\d-\d\d\)", "", entry)
        entry = re.sub(r"[ \t]*\n[ \t]+(?=\S)", " ", re.sub(r"\n[ \t]*\n", "\n\n", entry))
        entry = re.sub(r"\n\n[ \t]+", "\n\n", entry)
        if len(entry) > 160:
            yield entry


def gcide(root):
    text = read_text(root / "usr/share/dictd/gcide.dict.dz")
    for entry in dict_entries(text):
        if len(entry) < 420 or digest(entry) % 5:
            continue
        entry = re.sub(r"\s*\[(1913 Webster|PJC|WordNet[^\]]*|Webster[^\]]*)[^\]]*\]", "", entry)
        entry = re.sub(r"\{([^{}]*)\}", r"\1", entry)
        entry = re.sub(r"\\[^\\\n]*\\,?", ",", entry, count=1)
        entry = re.sub(r"[ \t]*\n[ \t]+(?=[^\s\d-])", " ", entry)
        yield re.sub(r"\n[ \t]+", "\n", entry)


def jargon(root):
    text = read_text(root / "usr/share/dictd/jargon.dict.dz")
    for entry in dict_entries(text):
        entry = re.sub(r"\{([^{}]*)\}", r"\1", entry)
        entry = re.sub(r"[ \t]*\n[ \t]+(?=\S)", " ", entry)
        if len(entry) > 200:
            yield entry


def html_text(source):
    source = re.sub(r"(?s)<(script|style|head)\b.*?</\1>", "", source)
    source = re.sub(r"\s+", " ", source)
    source = re.sub(r"(?i)</(p|h[1-6]|li|blockquote|div|tr|pre)>|<br ?/?>", "\n\n", source)
    return tidy(re.sub(r"\n[ \t]+", "\n", html.unescape(re.sub(r"<[^>]+>", "", source))))


def anarchism_qa(root):
    for path in sorted((root / "usr/share/doc/anarchism/html").glob("sec*.html")):
        source = read_text(path)
        for part in re.split(r"(?i)(?=<h[12][ >])", source)[1:]:
            head = re.match(r"(?is)<h[12][^>]*>(.*?)</h[12]>", part)
            if not head:
                continue
            question = re.sub(r"^[A-Z](\.\d+)* ", "", html_text(head.group(1)).strip())
            if not question.endswith("?"):
                continue
            body = html_text(part[head.end():])
            for piece in chunks(body, 2400):
                yield f"Q: {question}\n\nA: {piece}"


def anarchism_prose(root):
    for path in sorted((root / "usr/share/doc/anarchism/html").glob("append4*.html")):
        yield from chunks(html_text(read_text(path)), 2400)


def fortunes_zh(root):
    for name in ("tang300", "song100", "chinese"):
        text = read_text(root / "usr/share/games/fortunes" / name)
        text = re.sub(r"\x1b\[[0-9;]*m|\[\d\dm|\x1b\[m", "", text)
        for entry in text.split("\n%\n"):
            if cjk_share(entry) > 0.3:
                yield entry


def chinese_plain(path):
    text = re.sub(r"\n[ \t]+", "\n", read_text(path))
    text = re.sub(r"(?<=[\u4e00-\u9fff，。；：、])\n(?=[\u4e00-\u9fff])", "", text)
    for part in chunks(tidy(text), 1200):
        if cjk_share(part) > 0.3:
            yield part


def chinese_html(path):
    for part in chunks(html_text(read_text(path)), 1200):
        if cjk_share(part) > 0.3:
            yield part


def roff_text(source):
    lines = []
    for line in source.splitlines():
        if line.startswith((".\\\"", "'\\\"", "'''")):
            continue
        macro = re.match(r"^[.'][ ]*([A-Za-z]+)[ ]*(.*)$", line)
        if macro:
            name, rest = macro.groups()
            if name in ("B", "I", "BR", "RB", "IR", "RI", "BI", "IB", "SM", "Nm", "Ar", "Fl", "Xr"):
                lines.append(rest.replace('"', ""))
            elif name in ("SH", "SS", "Sh", "Ss"):
                lines.append("\n" + rest.replace('"', "") + "\n")
            elif name in ("PP", "TP", "IP", "LP", "P", "Pp", "It", "br", "HP"):
                lines.append("")
            continue
        lines.append(line)
    text = "\n".join(lines)
    text = re.sub(r"\\f(\[[^\]]*\]|\([A-Z]{2}|.)|\\s[+-]?\d|\\&|\\/|\\,|\\\|", "", text)
    text = text.replace("\\-", "-").replace("\\(bu", "*").replace("\\e", "\\").replace("\\ ", " ")
    return re.sub(r"(?<=[\u4e00-\u9fff，。；：、])\n(?=[\u4e00-\u9fff])", "", tidy(text))


def manpages_zh(root):
    for path in sorted((root / "usr/share/man/zh_CN").rglob("*.gz")):
        for part in chunks(roff_text(read_text(path)), 1200):
            if cjk_share(part) > 0.3:
                yield part


def code_files(root, paths, comment):
    for path in sorted(paths):
        text = path.read_bytes().decode("utf-8", errors="ignore")
        if len(text) < 400 or "\ufffd" in text:
            continue
        if comment == "//":
            # The licence block repeats in every header; what follows it is the code.
            at = text.find("<http://www.gnu.org/licenses/>.")
            if at >= 0:
                text = text[text.find("\n", at) + 1:]
            text = text.replace("\t", "        ")
        yield from chunks(text, 3000)


def cpp(root):
    files = [p for p in (root / "usr/include/c++/12").rglob("*") if p.is_file()
             and not p.is_symlink() and ("ext/pb_ds" not in str(p) and "parallel/" not in str(p))]
    return code_files(root, files, "//")


def python(root):
    files = [p for p in (root / "usr/lib/python3.11").rglob("*.py")
             if "encodings" not in str(p) and "pydoc_data" not in str(p) and not p.is_symlink()]
    return code_files(root, files, "#")


def debian_faq(root):
    text = read_text(root / "usr/share/doc/debian/FAQ/debian-faq.en.txt.gz")
    text = re.sub(r"\n[ \t\u00a0]+", "\n", text)
    for part in re.split(r"\n(?=\d+\.\d+(?:\.\d+)?\.\s)", text)[1:]:
        head, _, body = part.partition("\n\n")
        question = re.sub(r"^[\d.]+\s+", "", head).replace("\n", " ").strip()
        body = re.sub(r"(?<=\S)\n(?=[a-z(A-Z])", " ", body.strip())
        if len(body) > 120 and question:
            if not question.endswith("?"):
                question = f"What about {question[0].lower()}{question[1:]}?"
            yield f"Q: {question}\n\nA: {body}"


def pod_text(text):
    for _ in range(3):
        text = re.sub(r"[BICFSX]<([^<>]*)>", r"\1", text)
        text = re.sub(r"[BICFS]<< (.*?) >>", r"\1", text)
    text = re.sub(r"L<(?:[^|<>]*\|)?([^<>]*)>", r"\1", text)
    text = text.replace("E<gt>", ">").replace("E<lt>", "<").replace("E<mdash>", "-")
    text = re.sub(r"(?m)^=(over|back|cut|for|begin|end|pod|encoding)\b.*$", "", text)
    return tidy(re.sub(r"(?m)^=(?:item|head\d)\s+", "", text))


def perl_qa(root):
    pod = root / "usr/share/perl/5.36.0/pod"
    first = sorted(pod.glob("perlfaq?.pod")) + [pod / "perlunifaq.pod"]
    later = sorted(p for p in pod.glob("perl*tut.pod")) + [
        pod / f"perl{n}.pod" for n in ("intro", "sub", "ipc", "port", "hacktips", "style", "trap",
                                       "debug", "perf", "data", "op", "syn", "mod", "security",
                                       "sec", "func", "re")]
    for path in first + later:
        if not path.exists():
            continue
        for part in re.split(r"(?m)^(?==head[1-3]\s)", path.read_text(errors="ignore"))[1:]:
            head, _, body = part.partition("\n")
            question = pod_text(re.sub(r"^=head\d\s+", "", head))
            body = pod_text(body)
            if len(body) < 160 or question.isupper():
                continue
            if not question.endswith("?"):
                if path in first:
                    continue
                question = f"What does the manual say about {question}?"
            for piece in chunks(body, 2400):
                yield f"Q: {question}\n\nA: {piece}"


SOURCES = [
    ("en", "dict-foldoc", foldoc),
    ("en", "dict-gcide", gcide),
    ("en", "dict-jargon", jargon),
    ("en", "anarchism", anarchism_prose),
    ("zh", "fortunes-zh", fortunes_zh),
    ("zh", "debian-reference-zh-cn", lambda r: chinese_plain(
        r / "usr/share/debian-reference/debian-reference.zh-cn.txt.gz")),
    ("zh", "debian-faq-zh-cn", lambda r: chinese_plain(
        r / "usr/share/doc/debian/FAQ/debian-faq.zh-cn.txt.gz")),
    ("zh", "maint-guide-zh-cn", lambda r: chinese_plain(
        r / "usr/share/doc/maint-guide-zh-cn/maint-guide.zh-cn.txt.gz")),
    ("zh", "debian-edu-doc-zh-cn", lambda r: chinese_html(
        r / "usr/share/doc/debian-edu-doc-zh-cn/debian-edu-bookworm-manual.html")),
    ("zh", "manpages-zh", manpages_zh),
    ("code", "libstdc++-12-dev", cpp),
    ("code", "libpython3.11-stdlib", python),
    ("qa", "debian-faq", debian_faq),
    ("qa", "perl-doc", perl_qa),
    ("qa", "anarchism", anarchism_qa),
]


def fetch(scratch):
    """Downloads and unpacks every package; returns {package: (root, version)}."""
    debs, roots = scratch / "deb", scratch / "unpacked"
    debs.mkdir(parents=True, exist_ok=True)
    roots.mkdir(exist_ok=True)
    found = {}
    for package in PACKAGES:
        have = sorted(debs.glob(f"{package}_*.deb"))
        if not have:
            subprocess.run(["apt-get", "download", package], cwd=debs, check=True,
                           stderr=subprocess.DEVNULL)
            have = sorted(debs.glob(f"{package}_*.deb"))
        root = roots / package
        if not root.exists():
            subprocess.run(["dpkg-deb", "-x", have[-1], root], check=True)
        version = subprocess.run(["dpkg-deb", "-f", have[-1], "Version"], check=True, text=True,
                                 capture_output=True).stdout.strip()
        found[package] = (root, version)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="scratch folder (about 250 MB)")
    options = parser.parse_args()
    roots = fetch(options.out)
    manifest, seen = [], set()
    files = {}
    for domain in ("en", "zh", "code", "qa"):
        for part in ("train", "heldout"):
            files[domain, part] = open(options.out / f"{domain}.{part}.jsonl", "w")
    for domain, package, reader in SOURCES:
        root, version = roots[package]
        documents = {}
        for text in reader(root):
            text = tidy(text)
            key = digest(text)
            if len(text) >= 40 and key not in seen:
                seen.add(key)
                documents[key] = text
        limit = LIMITS.get((domain, package), 1 << 60)
        count = {"train": 0, "heldout": 0}
        size = 0
        # Hash order is a fixed shuffle: a limit takes an even sample of the source.
        for key in sorted(documents):
            text = documents[key]
            length = len(text.encode())
            if size + length > limit:
                continue
            size += length
            part = "heldout" if key % HELDOUT_ONE_IN == 0 else "train"
            count[part] += 1
            files[domain, part].write(
                json.dumps({"text": text, "source": package}, ensure_ascii=False) + "\n")
        manifest.append({"domain": domain, "package": package, "version": version,
                         "licence": PACKAGES[package], "bytes": size, **count})
        print(f"{domain:5} {package:24} {version:22} {count['train']:6} + {count['heldout']:4} "
              f"documents {size:9} bytes", file=sys.stderr)
    for stream in files.values():
        stream.close()
    (options.out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    os.environ["LC_ALL"] = "C.UTF-8"
    main()

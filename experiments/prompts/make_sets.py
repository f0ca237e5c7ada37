#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the prompt sets of the claims: scenarios/prompts/*.jsonl (beside those of
experiments/training/prompts.py).

    make_sets.py [--data FOLDER] [--only NAME ...]

Sets written by us come from the lists below, without random numbers. zh_poetry, lengths, warm_up and
long_32k are cut from documents held out of the checkpoint's training and need --data, the folder
that experiments/training/corpus.py wrote; without it they are left as they are. Lengths are counted
with the shipped checkpoint's tokenizer. Needs tokenizers.
"""
import argparse
import hashlib
import itertools
import json
from pathlib import Path

from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "scenarios/prompts"
TOKENIZER = Tokenizer.from_file(str(ROOT / "scenarios/checkpoints/sy-16x2/tokenizer.json"))


def length(text):
    return len(TOKENIZER.encode(text).ids)


def digest(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


# --- four e-commerce sets, with the mean lengths of C07: 42, 18, 25, 36 tokens ---

ITEMS = ["蓝牙耳机", "电饭煲", "运动鞋", "充电宝", "羽绒服", "空气炸锅", "机械键盘", "行李箱", "保温杯",
         "台灯", "扫地机器人", "婴儿车", "咖啡机", "手表", "背包", "显示器"]
SHOP = {
    "complaint": (42, [
        ["我上周买的{item}", "昨天收到的{item}", "刚拆开的{item}", "用了三天的{item}", "贵店发来的{item}"],
        ["外壳有明显划痕", "根本开不了机", "颜色和图片完全不一样", "尺寸发错了", "包装破损，里面进了水",
         "一直有异响", "少了两个配件"],
        ["，客服两天没有回复我", "，打了三次电话都没人接", "，退货申请又被驳回", "，物流还显示已签收",
         "，说明书也没有", ""],
        ["，请尽快给我换一个新的。", "，我要求全额退款。", "，请你们给一个说法。", "，今天之内必须处理。",
         "，否则我就向平台投诉。"],
        ["这样的服务让人非常失望。", "我以后不会再来了。", "希望你们认真对待顾客。", ""]]),
    "product": (18, [
        ["请问{item}", "你好，{item}", "这款{item}", "想问一下{item}"],
        ["有几种颜色", "保修多久", "支持七天退货吗", "能用多长时间", "有现货吗", "重量是多少", "可以开发票吗",
         "适合送人吗"],
        ["？", "？谢谢。", "，什么时候发货？", "，和上一代有什么区别？", "？我在外地。"]]),
    "promotion": (25, [
        ["【优惠】", "【会员】", "【新品】", "特惠："],
        ["{item}直降百元", "{item}半价", "{item}满三百减五十", "{item}买一送一"],
        ["，仅限今天", "，数量有限", "，先到先得", "，全国包邮", ""],
        ["！", "，点击购买。", "，进店参加。", "。退订回复T。"]]),
    "after_sales": (36, [
        ["我的订单里有一台{item}", "我在你们这里买了{item}", "上个月买的{item}"],
        ["，现在需要维修", "，想申请换货", "，想退掉其中一件", "，发票还没有收到", "，保修卡丢了"],
        ["，请告诉我具体的流程", "，应该寄到哪个地址", "，需要提供哪些材料", "，运费由谁承担"],
        ["，大概要等几天", "，可以上门取件吗", "，进度在哪里查询", ""],
        ["？", "？谢谢！", "？我的会员等级是金卡。", "？请用短信通知我。"]]),
}


def shop(name):
    mean, parts = SHOP[name]
    found = {}
    for n, pieces in enumerate(itertools.product(*parts)):
        text = "".join(pieces).replace("{item}", ITEMS[n * 7 % len(ITEMS)])
        found.setdefault(length(text), []).append(text)
    for texts in found.values():
        texts.sort(key=digest)
    # 16 pairs of lengths, one as much below the mean as the other is above it.
    rows = []
    for n in range(16):
        for reach in [n % 6, *range(1, 9)]:
            if found.get(mean - reach) and found.get(mean + reach) and (
                    reach > 0 or len(found[mean]) > 1):
                rows += [found[mean - reach].pop(), found[mean + reach].pop()]
                break
        else:
            raise SystemExit(f"{name}: too few texts around {mean} tokens")
    return [{"text": t} for t in rows]


# --- pairs and lists written by us ---

TASKS = ["install a package", "read a file line by line", "sort a list of numbers",
         "find a word in a text", "start a service at boot"]
ASKS = [("How do I {t}?", "What is the way to {t}?"),
        ("Please explain how to {t}.", "Could you show me how one can {t}?"),
        ("I want to {t}. What do I type?", "Which command do I enter in order to {t}?"),
        ("Give me the steps to {t}.", "List what I have to do to {t}."),
        ("What is the simplest method to {t}?", "Tell me the easiest way to {t}."),
        ("Is there a tool to {t}?", "Does a program exist with which I can {t}?"),
        ("Why does it fail when I {t}?", "For what reason do I get an error when I {t}?"),
        ("Write a short note on how to {t}.", "Compose a brief text about how to {t}."),
        ("Can a user {t} without root?", "Is it possible to {t} as an ordinary user?"),
        ("When should one {t}?", "At which moment is it right to {t}?")]

VAGUE = ["Tell me about it.", "What do you think?", "Can you help with this thing?", "And then?",
         "Say something about that.", "How is it?", "Do the usual.", "Is this good or not?"]
CLEAR = ["Explain in three steps how apt resolves the dependencies of {x}.",
         "Name the two configuration files that {x} reads at start, with their paths.",
         "Write the shell command that shows the version of {x} on Debian 12.",
         "Compare the memory use of {x} with 1 and with 8 worker processes.",
         "List every port on which {x} listens by default and the protocol of each."]
PROGRAMS = ["nginx", "PostgreSQL", "OpenSSH", "Postfix", "Apache", "MariaDB", "CUPS", "BIND"]

STYLES = ["In plain words for a child: {s}", "As a formal report to the board: {s}",
          "As a poem of four lines: {s}", "As a curt note between engineers: {s}"]
SUBJECTS = ["why the sky is blue.", "how a computer adds two numbers.", "what a mountain river is.",
            "why bread rises.", "how letters reach their address.", "what a prime number is.",
            "why leaves fall in autumn.", "how a clock keeps time."]

FACTS = ["the capital of France", "the boiling point of water", "the author of Faust",
         "the speed of light", "the year of the first moon landing", "the largest prime below 100",
         "the chemical symbol of gold", "the height of Mount Everest", "the founder of Debian",
         "the length of the Yangtze", "the number of bits in a byte", "the inventor of the telephone",
         "the population of Iceland", "the formula of table salt", "the birthplace of Confucius"]
KEYWORDS = ["fact:", "according to the record,", "exactly"]


def pairs(rows, a, b):
    out = []
    for n, (x, y) in enumerate(rows):
        out.append({"id": f"{n:02}-{a}", "domain": a, "text": x})
        out.append({"id": f"{n:02}-{b}", "domain": b, "text": y})
    return out


def code_prefix():
    with open(OUT / "mixed.jsonl") as stream:
        code = [r["text"] for r in map(json.loads, stream) if r["domain"] == "code"]
    return pairs([(t, "[CODE_START] def " + t) for t in code], "plain", "prefix")


def factual():
    return pairs([(f"Tell me {k} {f}.", f"Tell me a story about {f}.")
                  for f in FACTS for k in KEYWORDS[FACTS.index(f) % 3:][:1]], "factual", "other")


# --- cut from held-out documents ---

def documents(data, domain):
    with open(data / f"{domain}.heldout.jsonl") as stream:
        return sorted(map(json.loads, stream), key=lambda d: digest("set" + d["text"]))


def zh_poetry(data):
    """Classical poems and prose; sayings with a named modern author are left out."""
    out = []
    for d in documents(data, "zh"):
        text = d["text"].strip()
        if d["source"] == "fortunes-zh" and not any(x in text for x in ("--", "——", "毛泽东")):
            text = text[:160]
            if length(text) >= 12 and sum("\u4e00" <= c <= "\u9fff" for c in text) > len(text) / 2:
                out.append({"text": text})
    return out[:32]


def lengths(data):
    texts = [d["text"] for domain in ("en", "qa", "zh") for d in documents(data, domain)]
    out = []
    for name, low, high in (("4-15", 4, 15), ("16-64", 16, 64), ("65-128", 65, 128),
                            ("over-128", 129, 230)):
        made = 0
        for n, text in enumerate(texts[::-1] if low > 64 else texts):
            want = low + (n * 7) % (high - low + 1)
            piece = TOKENIZER.decode(TOKENIZER.encode(text).ids[:want]).strip()
            if "\ufffd" not in piece and low <= length(piece) <= high and made < 16:
                out.append({"id": f"{name}-{made:02}", "domain": name, "text": piece})
                made += 1
        assert made == 16, (name, made)
    return out


def warm_up(data):
    out = []
    for domain in ("en", "zh", "code", "qa"):
        texts = [TOKENIZER.decode(TOKENIZER.encode(d["text"]).ids[4:36]).strip()
                 for d in documents(data, domain)]
        texts = [t for t in texts if "\ufffd" not in t and length(t) >= 16]
        out += [{"id": f"{domain}-{n:02}", "domain": domain, "text": t}
                for n, t in enumerate(texts[:25])]
    assert len(out) == 100
    return out


def long_32k(data):
    ids = TOKENIZER.encode("\n\n".join(d["text"] for d in documents(data, "en"))).ids
    for count in range(32768, len(ids)):
        text = TOKENIZER.decode(ids[:count])
        if "\ufffd" not in text and length(text) == 32768:
            return [{"id": "long-32k", "domain": "en", "text": text}]
    raise SystemExit("too little held-out text")


SETS = {
    "shop_complaint": lambda _: shop("complaint"),
    "shop_product": lambda _: shop("product"),
    "shop_promotion": lambda _: shop("promotion"),
    "shop_after_sales": lambda _: shop("after_sales"),
    "dots": lambda _: [{"text": "。" * 128}],
    "paraphrase": lambda _: pairs([(a.format(t=t), b.format(t=t)) for a, b in ASKS for t in TASKS],
                                  "first", "second"),
    "vague_clear": lambda _: pairs([(VAGUE[(n + i) % 8], c.format(x=p))
                                    for n, c in enumerate(CLEAR)
                                    for i, p in enumerate(PROGRAMS)], "vague", "clear"),
    "style": lambda _: [{"id": f"{n:02}-{i}", "domain": ("child", "report", "poem", "note")[i],
                         "text": s.format(s=x)}
                        for n, x in enumerate(SUBJECTS) for i, s in enumerate(STYLES)],
    "factual": lambda _: factual(),
    "code_prefix": lambda _: code_prefix(),
    "zh_poetry": zh_poetry, "lengths": lengths, "warm_up": warm_up, "long_32k": long_32k,
}
NEED_DATA = {"zh_poetry", "lengths", "warm_up", "long_32k"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", nargs="*", default=list(SETS))
    options = parser.parse_args()
    for name in options.only:
        if name in NEED_DATA and options.data is None:
            print(f"{name}: left as it is (needs --data)")
            continue
        rows = SETS[name](options.data)
        counts = [length(r["text"]) for r in rows]
        with open(OUT / f"{name}.jsonl", "w") as stream:
            for n, row in enumerate(rows):
                row = {"id": row.get("id", f"{name}-{n:02}"), "domain": row.get("domain", name),
                       "text": row["text"]}
                stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(f"{name}: {len(rows)} prompts, {min(counts)} to {max(counts)} tokens, "
              f"mean {sum(counts) / len(counts):.2f}")


if __name__ == "__main__":
    main()

"""The strings that tokenizer vectors are made from: fixed cases and seeded random ones, as bytes. Imported by the scripts beside it."""

import random
import unicodedata

SENTENCES = r"""Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do.
“What is the use of a book,” thought Alice “without pictures or conversations?”
Call me Ishmael. Some years ago—never mind how long precisely—having little or no money in my purse, I thought I would sail about.
It's 7 o'clock; they'll say we've DON'T and I'M and you'd and he'S. 'Twas the night, rock 'n' roll.
El veloz murciélago hindú comía feliz cardillo y kiwi. La cigüeña tocaba el saxofón detrás del palenque de paja.
Voix ambiguë d’un cœur qui au zéphyr préfère les jattes de kiwis; où est l’hôtel ? Là-bas, à côté.
Falsches Üben von Xylophonmusik quält jeden größeren Zwerg. Straße, STRASSE, ẞ.
Příliš žluťoučký kůň úpěl ďábelské ódy. Zażółć gęślą jaźń.
Pijamalı hasta yağız şoföre çabucak güvendi. İstanbul ıssız.
Съешь же ещё этих мягких французских булок, да выпей чаю. Їжак, ґанок, ў.
Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία. Γαζίες καὶ μυρτιές.
دع حصانك يركض بحرية في السهول الخضراء، ١٢٣٤٥ كتابًا جديدًا.
דג סקרן שט בים מאוכזב ולפתע מצא חברה. שָׁלוֹם עֲלֵיכֶם
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश। १२३ नमस्ते
আমি বাংলায় গান গাই। ১২৩৪ টাকা
ਮੈਂ ਪੰਜਾਬੀ ਬੋਲਦਾ ਹਾਂ। ਗੁਜરાતી ભાષા ௧௨௩ தமிழ் மொழி வாழ்க
తెలుగు అందమైన భాష. ಕನ್ನಡ ಭಾಷೆ. മലയാളം ഭാഷ. සිංහල භාෂාව
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ๑๒๓
ພາສາລາວ ແມ່ນງາມ. ភាសាខ្មែរ ស្រស់ស្អាត។ မြန်မာဘာသာ စကား
བོད་སྐད་ནི་སྙན་པོ་ཡིན། ქართული ენა ლამაზია. Հայերեն լեզու գեղեցիկ է։
አማርኛ ውብ ቋንቋ ነው። ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ. ᓀᐦᐃᔭᐍᐏᐣ
いろはにほへと ちりぬるを。色は匂へど散りぬるを。カタカナ、ｶﾀｶﾅ、ＡＢＣ１２３
天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。中文和English混排123測試。𠀀𠮷野家
키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. 대한민국 만세
Tiếng Việt có nhiều dấu: ă â đ ê ô ơ ư, ầ ẩ ẫ ấ ậ. Hồ Chí Minh
ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ᠌ ᠡ. ⴰⵎⴰⵣⵉⵖ. ߒߞߏ. 𐌰𐌱𐌲 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚
def f(x):\r\n\treturn {"a": [x**2 for _ in range(10)], 'b': None}  # comment\r\n\r\n
for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }\n\n\t\tif (sum >= 1e-6) return -1;\n
{"id": 1234567, "pi": 3.14159, "url": "https://example.org/a?b=c&d=%20#x", "e": "a\\n"}
SELECT * FROM t WHERE a<>'b' AND c>=10.50; -- 2024-02-29T23:59:60Z +1 (555) 010-9999
$x^2+y^2=z^2$ ∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β → γ ≠ ∅ ½ ² ³ Ⅷ ⅷ ① ㊿ № ™ ℃ ﬁ ﬂ ﬅ""".split(
    "\n"
)

EMOJI = [
    "👨‍👩‍👧‍👦",
    "🏳️‍🌈",
    "👍🏽",
    "🇩🇪🇫🇷🇯🇵",
    "1️⃣2️⃣#️⃣",
    "❤️‍🔥",
    "🧑🏿‍🚀",
    "😀😁😂🤣",
    "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "☃",
    "☃️",
    "🤷🏼‍♀️",
    "👩‍❤️‍💋‍👨",
    "‍",
    "️",
    "👋 🌍",
]

SPACES = [
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r",
    "\r\n",
    "\v",
    "\f",
    "\x1c",
    "\x1f",
    "\x85",
    "\xa0",
    "\u1680",
    "\u180e",
    "\u2000",
    "\u2003",
    "\u2009",
    "\u200a",
    "\u200b",
    "\u2028",
    "\u2029",
    "\u202f",
    "\u205f",
    "\u3000",
    "\ufeff",
    "\u2060",
    "▁",
    "▁▁",
    " ▁ ",
]

TOKENS = [
    "<|bos|>",
    "<|eos|>",
    "<|pad|>",
    "<|endoftext|>",
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<s>",
    "</s>",
    "<unk>",
    "<pad>",
    "<0x0A>",
    "<0xff>",
    "<sep>",
    "<sep><sep2>",
    "<|im_",
    "<|",
    "|>",
    "<s",
    "/s>",
    "<|endoftext|",
    "<|endof<|endoftext|>text|>",
    "⁇",
    " ⁇ ",
    "[INST]",
    "<tool",
]

FIXED = [
    "",
    " ",
    "  ",
    "   ",
    "a",
    " a",
    "a ",
    " a ",
    "  a  b  ",
    "a\nb",
    "a\r\nb",
    "a\rb",
    "\n\n\n",
    " \n \n ",
    "\r\n\r\n",
    "a  \n\n  b",
    "\t\t x",
    "'s",
    "'S",
    "'ſ",
    "x'ſ",
    "'ll'LL'Ll've'VE're'RE'd'D'm'M't'T",
    "’s",
    "'sa",
    "''s",
    "\x00",
    "a\x00b",
    "\x7f",
    "\x80",
    "\u00ad",
    "0",
    "12",
    "123",
    "1234",
    "12345678901234567890",
    "1,234.56",
    "٣٤٥٦",
    "३४५",
    "３４５６",
    "²³",
    "½¾",
    "Ⅷ",
    "1a2b3c",
    "a1",
    "é",
    "e\u0301",
    "\u0301",
    "a\u0315\u0300\u05ae\u0300b",
    "\u1100\u1161\u11a8",
    "\uac00\u11a8",
    "\u0344",
    "\u212b",
    "\u2126",
    "\uf900",
    "\u0958",
    "ẛ̣",
    "\u1e9b\u0323",
    "q\u0307\u0323",
    "\u0f71\u0f72\u0f74",
    "\ufffd",
    "\ufffe",
    "\uffff",
    "\U0010ffff",
    "\ue000",
    "\U000e0001",
    "<tool_call>\u0338",
    "=\u0338",
    "<\u0338",
    "A" * 40,
    "hello world",
    "Hello, World!",
    "internationalization",
    "antidisestablishmentarianism",
    "!!!???...",
    "----====",
    "a.b.c",
    "www.x.org",
    "C++17",
    "#include",
    "\\n\\t",
    '"q"',
    "«q»",
]

INVALID = [
    b"\xff",
    b"\xfe\xff",
    b"\x80",
    b"\xc3",
    b"\xc3(",
    b"\xe2\x82",
    b"\xe2\x82a",
    b"\xf0\x9f\x98",
    b"\xf0\x9f\x98 \xf0",
    b"\xc0\xaf",
    b"\xe0\x80\xaf",
    b"\xf0\x80\x80\xaf",
    b"\xed\xa0\x80",
    b"\xed\xa0\xbd\xed\xb8\x80",
    b"\xf4\x90\x80\x80",
    b"\xf8\x88\x80\x80\x80",
    b"\xbf\xbf\xbf\xbf",
    b"abc\xffdef",
    b" \xff ",
    b"\xff\xff\xff\xff",
    b"a \x80 b",
    b"caf\xe9 cr\xe8me",
    b"\xe4\xf6\xfc",
    b"x\xe2\x80\x99s\xe2\x80",
    b"\x00\xff\x00",
    b"  \xff  ",
    b"\xff  ",
    b"  \xff",
    b"<s>\xff</s>",
    b"<|endoftext|>\xc3<|endoftext|>",
    b"\xe2\x96 \x81",
    b"\xe2\x96\x81\xe2\x96",
]

BLOCKS = [
    (0x20, 0x7F),
    (0xA0, 0x250),
    (0x250, 0x2B0),
    (0x300, 0x370),
    (0x370, 0x530),
    (0x531, 0x590),
    (0x590, 0x700),
    (0x900, 0xE00),
    (0xE00, 0x1000),
    (0x1000, 0x1200),
    (0x1200, 0x1400),
    (0x1780, 0x1900),
    (0x1E00, 0x2000),
    (0x2000, 0x2100),
    (0x2100, 0x2400),
    (0x2460, 0x2800),
    (0x2E80, 0x3100),
    (0x3130, 0x3400),
    (0x4E00, 0x5200),
    (0xA000, 0xA4D0),
    (0xAC00, 0xB000),
    (0xF900, 0xFB00),
    (0xFB50, 0xFE00),
    (0xFF00, 0xFFF0),
    (0x10000, 0x10100),
    (0x12000, 0x12100),
    (0x1D400, 0x1D800),
    (0x1F300, 0x1F700),
    (0x20000, 0x20100),
]


def assigned(c):
    """Known to Unicode 13 and older; newer characters differ between Unicode tables."""
    return unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")


def corpus():
    """Text in many scripts, for training."""
    return [
        s.encode().decode("unicode_escape").encode("latin-1").decode() if s.isascii() and "\\" in s else s
        for s in SENTENCES
    ] + EMOJI


def strings():
    """All strings, without repeats, in a fixed order."""
    r = random.Random(20240229)
    out = [s.encode() for s in FIXED + SPACES + EMOJI + TOKENS] + list(INVALID)
    lines = corpus()
    out += [s.encode() for s in lines]
    words = sorted({w for s in lines for w in s.split()})
    for s in lines:  # slices of sentences
        for _ in range(10):
            a = r.randrange(len(s))
            out.append(s[a : a + r.randrange(1, 40)].encode())
    for _ in range(350):  # words with any space between
        out.append(
            "".join(
                r.choice(words) + (r.choice(SPACES) if r.random() < 0.4 else " ")
                for _ in range(r.randrange(1, 6))
            ).encode()
        )
    for lo, hi in BLOCKS:  # characters of one script, then with spaces and signs
        chars = [chr(c) for c in range(lo, hi) if assigned(c)]
        for i in range(12):
            s = "".join(r.choice(chars) for _ in range(r.randrange(1, 14)))
            out.append((s if i % 2 else " ".join(s) + r.choice(".,!?'")).encode())
    everything = [chr(c) for lo, hi in BLOCKS for c in range(lo, hi) if assigned(c)]
    for _ in range(200):  # all scripts mixed
        out.append("".join(r.choice(everything) for _ in range(r.randrange(1, 12))).encode())
    marks = [chr(c) for c in range(0x300, 0x370)] + [
        "\u05b0",
        "\u05bc",
        "\u064e",
        "\u0651",
        "\u0323",
        "\u0345",
        "\u0308",
        "\u0301",
    ]
    for _ in range(150):  # combining marks in any order
        out.append(
            "".join(
                r.choice("aeiouAEIOUnsАеіω가ᄀ") + "".join(r.choice(marks) for _ in range(r.randrange(0, 5)))
                for _ in range(r.randrange(1, 5))
            ).encode()
        )
    jamo = [chr(c) for c in (*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A8, 0x11C3))]
    for _ in range(40):
        out.append("".join(r.choice(jamo) for _ in range(r.randrange(1, 10))).encode())
    for _ in range(200):  # spaces of all kinds between little
        out.append(
            "".join(r.choice(SPACES + ["a", ".", "1", "é", "中"]) for _ in range(r.randrange(2, 12))).encode()
        )
    for _ in range(120):  # digits
        out.append(
            "".join(
                r.choice("0123456789" * 3 + " .,-:/eE%" + "٣३३３²½") for _ in range(r.randrange(1, 18))
            ).encode()
        )
    for _ in range(150):  # tokens in text
        out.append(
            "".join(
                r.choice(TOKENS + words[:200] + [" ", "\n", ""]) for _ in range(r.randrange(2, 6))
            ).encode()
        )
    for _ in range(60):
        out.append(
            "".join(r.choice(EMOJI + [" ", "a", "🏽", "‍", "🇩"]) for _ in range(r.randrange(1, 7))).encode()
        )
    for _ in range(150):  # bytes put into and taken out of good text
        s = bytearray("".join(r.choice(words + EMOJI) + " " for _ in range(3)).encode())
        for _ in range(r.randrange(1, 5)):
            at = r.randrange(len(s))
            if r.random() < 0.5:
                del s[at]
            else:
                s.insert(at, r.randrange(0x80, 0x100))
        out.append(bytes(s[:60]))
    for _ in range(60):
        out.append(bytes(r.randrange(256) for _ in range(r.randrange(1, 20))))
    for unit in [
        "a",
        " ",
        "\n",
        "\r\n",
        "é",
        "中",
        "😀",
        "ab",
        "a ",
        " a",
        "1",
        "!",
        "\t",
        "▁",
        "\u0301",
        "\u0323\u0301",
        "=",
        "가",
        "'s",
        "<s>",
        "e\u0301",
        "\xa0",
    ]:
        for n in (7, 33, 130):
            out.append((unit * n).encode())
    out += [b"\xff" * 100, b"\xe2\x82" * 40, b"a\xff" * 40]
    return list(dict.fromkeys(out))


FAMILY_TOKENS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|im_sep|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
    "<|endoftext|>",
    "<think>",
    "<s>",
    "</s>",
    "[INST]",
    "<start_of_turn>",
    "<end_of_turn>",
    "<table>",
    "|||IP_ADDRESS|||",
]


def family_strings():
    """What families differ in, beyond strings(): case and contractions, digits beside signs, spaces around tokens."""
    r = random.Random(20240301)
    out = [
        s.encode()
        for s in (
            "it\u2019s IT\u2019S it'S I'LL we'Re 'T's'\u017f 'd've DON'T'S\u017f x'\u017f",
            "HTTPServer iPhone McDonald aB Ab AbC ABc\u0301D\u0301e \u01c5ungla \u01c8\u01cb \u02b0h \u00aa\u00ba",
            "\u00c9t\u00c9 \u0130I\u0131i \u1e9e\u00df \u03a3\u03c3\u03c2 \u0416\u0436 \u10d0\u1c90 \u13a0\uab70 \U00010400\U00010428",
            "a/b//c/\n/\r\n//\n\n/ http://x.y/z/ ./ ../ !/\n",
            "1234567.89e-10 1,234,567 0x1F 3rd 2nd \u0663\u0664\u0665\u0666 \u00bd\u00b2\u2167 \u4e00\u4e8c123\u4e09",
            "(a|b|c)|(d) [x] {y} ||| ((( ))) .,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c|(",
            "end of line   \n  x  \r\n   \r y \t\n\n\n\t z   ",
            "   ",
            "x   ",
            "x \u3000 \u2003\u0085 ",
            "#include<x>\n\t#define F(x)\t((x)+1)\\\n;;--**//",
            "\u3042\u30a2\u6f22\u5b57\u3131\uac00\ud7a3\ud7b0\u0800\u4e00\u9fa5\u9fa6\u3400 \U00020000",
            "\u0915\u094d\u0937 \u0939\u093f\u0928\u094d\u0926\u0940 \u0e01\u0e33 \u0bae\u0bca\u0bb4\u0bbf e\u0301\u0323X\u0301x",
            "$100 +5 -3 <=> ~x ^y `z` \u20ac50 \u00a35 \u00b11 \u00d72 \u2264\u2265\u2260",
        )
    ]
    spaces = [" ", "  ", "\n", "\t", "\r\n", "\u3000", "\u00a0", "\u0085", "\u200b", ""]
    for token in FAMILY_TOKENS:
        for before in ("", " ", "\n", "a", "a ", "a \n\u3000"):
            for after in ("", " ", "\n\n", "b", " b", "\u3000 b"):
                out.append((before + token + after).encode())
    parts = FAMILY_TOKENS + ["user", "Hi!", "42", "\u4f60\u597d", "iOS", "\u2581", "'S"] * 2
    for _ in range(250):
        out.append("".join(r.choice(parts) + r.choice(spaces) for _ in range(r.randrange(2, 7))).encode())
    return list(dict.fromkeys(out))


def escape(b):
    """UTF-8 as it is, everything else and the unprintable as \\xNN; a backslash twice."""
    out = []
    for c in b.decode("utf-8", "surrogateescape"):
        if c == "\\":
            out.append("\\\\")
        elif 0xDC80 <= ord(c) <= 0xDCFF:
            out.append("\\x%02x" % (ord(c) - 0xDC00))
        elif c != " " and (unicodedata.category(c)[0] in "ZC" or unicodedata.combining(c)):
            out.append("".join("\\x%02x" % x for x in c.encode()))
        else:
            out.append(c)
    return "".join(out)

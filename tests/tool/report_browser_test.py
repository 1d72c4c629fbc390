"""The page of `kvc report` as a browser shows it, in both colour schemes: what is drawn has a place and a size, texts
stay within their pictures and can be read, nothing is asked of the network. Where there is no chromium, that is said
(Debian: chromium) and the test ends with 77, which ctest shows as skipped.

report_browser_test.py KVC MODEL.kvc TASKS.jsonl"""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SCHEMES = {"light": [], "dark": ["--force-dark-mode"]}
# Added to a copy of the page: what is where, as the browser has laid it out.
MEASURE = r"""<p id="measured"></p><script>
const box = e => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
const within = (a, b) => a[0] >= b[0] - 1 && a[1] >= b[1] - 1 && a[2] <= b[2] + 1 && a[3] <= b[3] + 1;
const all = (from, what) => [...from.querySelectorAll(what)];
for (const d of all(document, "details")) d.open = true;
const pictures = all(document, "svg").map(svg => {
  const marks = all(svg, "polyline,circle,rect,line,path");
  return {
    width: box(svg)[2] - box(svg)[0], lines: all(svg, "polyline").map(p => p.points.numberOfItems),
    rects: all(svg, "rect").length, texts: all(svg, "text").length,
    outside: [...marks, ...all(svg, "text")].filter(e => !within(box(e), box(svg))).map(e => e.outerHTML),
    flat: marks.filter(e => !(e.points && e.points.numberOfItems == 1))  // a curve of one point is its circle
      .filter(e => box(e)[2] - box(e)[0] + box(e)[3] - box(e)[1] == 0).map(e => e.outerHTML),
    inks: [...new Set(all(svg, "text").map(e => getComputedStyle(e).fill))],
    grounds: [...new Set(all(svg, "rect").map(e => getComputedStyle(e).fill))]};
});
const style = getComputedStyle(document.body);
document.getElementById("measured").textContent = JSON.stringify({
  dark: matchMedia("(prefers-color-scheme: dark)").matches, ink: style.color, ground: style.backgroundColor, pictures,
  rows: all(document, ".wide tr").length, grids: all(document, "table.grid").map(g => all(g, "td[style]").length),
  kept: all(document, ".text").map(t => [all(t, "span").length, all(t, "b").length]),
  widest: document.documentElement.scrollWidth, window: innerWidth,
  clear: all(document, ".text span").filter(
    e => getComputedStyle(e).backgroundColor == "rgba(0, 0, 0, 0)").length});
</script></body>"""


def luminance(colour):
    """WCAG's relative luminance of rgb(r, g, b)."""
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4
              for x in (int(c) / 255 for c in re.findall(r"\d+", colour)[:3])]  # fmt: skip
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def pixels(png):
    """Rows of a PNG of 8 bits a channel, and the bytes of a pixel."""
    at, data, header = 8, b"", None
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + size]
        header = struct.unpack(">IIBBBBB", body) if kind == b"IHDR" else header
        data += body if kind == b"IDAT" else b""
        at += size + 12
    width, height, depth, colours = header[:4]
    assert depth == 8 and colours in (2, 6), header
    step, raw = 3 if colours == 2 else 4, zlib.decompress(data)
    rows, before, length = [], bytearray(width * step), width * step
    for y in range(height):
        kind, row = raw[y * (length + 1)], bytearray(raw[y * (length + 1) + 1 : (y + 1) * (length + 1)])
        for i in range(length if kind else 0):
            left, above = row[i - step] if i >= step else 0, before[i]
            corner = before[i - step] if i >= step else 0
            guess = left + above - corner
            near = min((abs(guess - left), 0, left), (abs(guess - above), 1, above), (abs(guess - corner), 2, corner))
            row[i] = row[i] + (0, left, above, (left + above) // 2, near[2])[kind] & 255
        rows.append(bytes(row))
        before = row
    return rows, step


class ReportInABrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.page = os.path.join(cls.folder, "report.html")
        subprocess.run(
            [KVC, "report", MODEL, "--data", TASKS, "--limit", "2", "--policy", "cokv", "--policy",
             "snapkv:budget=64,window=8", "--budgets", "96,32", "--focus", "32", "-o", cls.page],
            check=True, capture_output=True,
        )  # fmt: skip
        with open(cls.page, encoding="utf-8") as file:
            text = file.read()
        assert text.count("</body>") == 1
        cls.measuring = os.path.join(cls.folder, "measuring.html")
        with open(cls.measuring, "w", encoding="utf-8") as file:
            file.write(text.replace("</body>", MEASURE))

    def browse(self, page, scheme, *words):
        done = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--log-level=0",
             "--host-resolver-rules=MAP * ~NOTFOUND", "--hide-scrollbars", *SCHEMES[scheme], *words, "file://" + page],
            capture_output=True, text=True, timeout=500, cwd=self.folder, env=dict(os.environ, HOME=self.folder),
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("CONSOLE", done.stderr)  # complaints of the page
        return done.stdout

    def measured(self, scheme):
        dom = self.browse(self.measuring, scheme, "--window-size=1100,1400", "--dump-dom")
        found = re.search(r'id="measured">(.*?)</p>', dom, re.S)
        return json.loads(found.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))

    def check(self, scheme):
        page = self.measured(scheme)
        self.assertEqual(page["dark"], scheme == "dark")
        self.assertGreaterEqual(contrast(page["ink"], page["ground"]), 7)
        self.assertLessEqual(page["widest"], page["window"], "nothing hangs out of the page")
        self.assertEqual(page["rows"], 5)  # heading, full, two budgets of one policy, one of the other
        curves, heats = page["pictures"][:3], page["pictures"][3:]
        self.assertEqual([picture["lines"] for picture in curves], [[2, 1]] * 3)
        for picture in heats:  # slots of both policies, head scores
            self.assertGreaterEqual(picture["rects"], 24)
        self.assertEqual(len(heats), 3)
        for picture in page["pictures"]:
            self.assertGreater(picture["width"], 300)
            self.assertGreaterEqual(picture["texts"], 4)
            self.assertEqual(picture["outside"], [])
            self.assertEqual(picture["flat"], [])
        self.assertEqual(len(page["grids"]), 3)  # the full cache and both policies
        for cells in page["grids"]:
            self.assertGreaterEqual(cells, 1)
        for spans, wanted in page["kept"]:
            self.assertGreater(spans, 10)
            self.assertGreaterEqual(wanted, 1)
        self.assertEqual(page["clear"], 0)
        return page

    def test_light_and_dark_are_laid_out_alike_and_can_be_read(self):
        light, dark = self.check("light"), self.check("dark")
        self.assertNotEqual(light["ground"], dark["ground"])
        for key in ("rows", "grids", "kept"):
            self.assertEqual(light[key], dark[key])

    def test_both_are_painted(self):
        grounds = set()
        for scheme in SCHEMES:
            shot = os.path.join(self.folder, scheme + ".png")
            self.browse(self.page, scheme, "--window-size=640,640", "--screenshot=" + shot)
            with open(shot, "rb") as file:
                rows, step = pixels(file.read())
            counts = {}
            for row in rows:
                for at in range(0, len(row), step):
                    colour = row[at : at + 3]
                    counts[colour] = counts.get(colour, 0) + 1
            ground = max(counts, key=counts.get)
            grounds.add(ground)
            drawn = sum(counts.values()) - counts[ground]
            self.assertGreater(drawn, 0.02 * sum(counts.values()))
            self.assertGreater(len(counts), 50)  # edges of letters, curves of several colours
        self.assertEqual(grounds, {bytes.fromhex("ffffff"), bytes.fromhex("0d1117")})


if __name__ == "__main__":
    KVC, MODEL, TASKS = sys.argv[1:4]
    BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
    if BROWSER is None:
        print("no browser to look at the page with (Debian: chromium)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])

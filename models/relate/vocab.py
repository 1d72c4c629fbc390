"""Trains the byte-level BPE of `relate` (2,048 pieces, every word of the tasks one piece): vocab.py CORPUS OUT."""
import glob
import sys

import tasks
from documents import bpe

corpus, out = sys.argv[1:3]
text = "".join(open(f, encoding="utf-8", errors="replace").read().replace("\r\n", "\n")
               for f in sorted(glob.glob(corpus + "/*.txt")))
text += "".join(f" {w}" * 600 for w in tasks.WORDS)
vocab, merges = bpe.train(text, 2048)
bpe.save_hf(out, vocab, merges)
tok = bpe.Tok(vocab, merges)
print([w for w in tasks.WORDS if len(tok.encode(" " + w)) > 1], "take more than one piece")

"""Writes reference values of head scoring on the trained model: the utilities of some coalitions (methods.md 3.1, 3.3)
and HeadKV's scores of query heads (3.7), of one question whose answer stands in the middle of a short text.

python make_score_vectors.py MODEL_DIR OUT_FILE     (models/recall, whose bpe.py is the tokenizer here)
"""

import json
import sys
import numpy as np
import philox
from llama import Llama, softmax

SEED, SIZE, N_ITEMS, WINDOW = 1, 12, 3, 8
QUESTION, ANSWER = " The code of Robin is", " 386."


class Step:
    """Tokens one by one behind what every KV head holds."""

    def __init__(self, model, layers, keep):
        """keep [L * n_kv]: those that keep all of the prompt; the others its newest entries."""
        kept = lambda x, i, k: x[k] if keep[i * model.n_kv + k] else x[k][-WINDOW:]
        heads = range(model.n_kv)
        self.model, self.pos = model, layers[0].n
        self.K = [[kept(x.K, i, k) for k in heads] for i, x in enumerate(layers)]
        self.V = [[kept(x.V, i, k) for k in heads] for i, x in enumerate(layers)]

    def feed(self, token):
        """Logits, and attention rows [L][n_q]."""
        m, x, rows = self.model, self.model.embed[[token]], []
        for i, block in enumerate(m.blocks):
            Q, K, V = m.qkv(block, x, np.array([self.pos]))
            g, out, of_layer = m.n_q // m.n_kv, [], []
            for k in range(m.n_kv):
                self.K[i][k], self.V[i][k] = np.vstack([self.K[i][k], K[k]]), np.vstack([self.V[i][k], V[k]])
                p = softmax(Q[k * g : (k + 1) * g, 0] @ self.K[i][k].T * m.d**-0.5)
                out.append(p @ self.V[i][k])
                of_layer += list(p)
            rows.append(of_layer)
            x = m.finish_block(block, x, np.concatenate(out)[:, None])
        self.pos += 1
        return m.logits(x)[-1], rows


def utility(model, layers, keep, question, answer):
    """exp of the mean log-probability of the answer."""
    step, log_likelihood = Step(model, layers, keep), 0.0
    tokens = question + answer[:-1]
    for i, token in enumerate(tokens):
        logits, _ = step.feed(token)
        if i >= len(question) - 1:
            log_likelihood += np.log(softmax(logits)[answer[i - len(question) + 1]])
    return float(np.exp(log_likelihood / len(answer)))


def retrieval(model, layers, question, answer, first, length, eos):
    """Scores [L, n_q], and what was answered."""
    step, score, written = Step(model, layers, np.ones(model.L * model.n_kv)), np.zeros((model.L, model.n_q)), []
    for token in question[:-1]:
        step.feed(token)
    token = question[-1]
    for _ in range(min(50, len(answer))):
        logits, rows = step.feed(token)
        for i, h in np.ndindex(score.shape):
            best = np.argsort(-rows[i][h], kind="stable")[:length]
            score[i, h] += rows[i][h][best[(best >= first) & (best < first + length)]].sum() / length
        token = int(np.argmax(logits))
        if token == eos:
            break
        written.append(token)
    return score, written


def main():
    model_dir, out = sys.argv[1:3]
    sys.path.insert(0, model_dir)
    import bpe

    tokenizer, model = bpe.load_hf(f"{model_dir}/tokenizer.json"), Llama(model_dir)
    with open(f"{model_dir}/tasks/train/niah_multi.jsonl", encoding="utf-8") as f:
        prose = json.loads(f.readline())["context"]
    context = prose[:300] + QUESTION + ANSWER + " " + prose[300:800]
    bos, eos = 0, 1
    ids, question, answer = [bos] + tokenizer.encode(context), tokenizer.encode(QUESTION), tokenizer.encode(ANSWER)
    layers, _ = model.prefill(ids)
    needle = set(tokenizer.encode(QUESTION + ANSWER))
    length = len(tokenizer.encode(QUESTION + ANSWER))
    overlaps = [len(needle & set(ids[i : i + length])) for i in range(len(ids) - length + 1)]
    first = int(np.argmax(overlaps))
    scores, written = retrieval(model, layers, question, answer, first, length, eos)
    assert tokenizer.decode(written).strip(" .") == ANSWER.strip(" ."), "counts only where the answer is right"
    N, records = model.L * model.n_kv, []
    for k in range(N_ITEMS):
        keep = np.zeros(N, int)
        keep[philox.permutation(SEED, 0, SIZE, k, N)[:SIZE]] = 1
        records.append([utility(model, layers, x, question, answer) for x in (keep, 1 - keep)])
        print(k, records[-1], flush=True)
    task = dict(context=context, questions=[dict(question=QUESTION, answer=ANSWER)])
    nine = lambda x: float(f"{x:.9g}")
    content = dict(
        format="kvc-golden/1",
        task=task,
        seed=SEED,
        size=SIZE,
        utilities=[[nine(u) for u in pair] for pair in records],
        retrieval=[[nine(x) for x in row] for row in scores],
    )
    with open(out, "w", encoding="utf-8") as f:
        json.dump(content, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()

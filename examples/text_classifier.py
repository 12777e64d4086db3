"""A text classifier that stays loaded: `python examples/text_classifier.py`. It downloads nothing.

The class is made once, on a worker, which keeps it; each call is a message to it. `with` lets go of it at the end.
"""

from __future__ import annotations

import math
import re
from collections import Counter

import gpulayer as gl

REVIEWS = [
    ("what a wonderful warm film, I laughed and cried", "good"),
    ("brilliant acting and a clever story", "good"),
    ("I loved every minute, a great evening", "good"),
    ("beautiful music, lovely pictures, a fine ending", "good"),
    ("dull, slow and far too long", "bad"),
    ("a terrible script and worse acting", "bad"),
    ("I was bored and left early, awful", "bad"),
    ("a waste of money, poor in every way", "bad"),
]


@gl.remote
class Classifier:
    """Naive Bayes over words, with a word for each class and one more (Laplace's rule)."""

    def __init__(self, examples: list[tuple[str, str]]):
        self.words: dict[str, Counter[str]] = {}
        self.texts: Counter[str] = Counter()
        self.learn(examples)

    def learn(self, examples: list[tuple[str, str]]) -> int:
        """Take more examples (text, class); how many it knows then."""
        for text, kind in examples:
            self.texts[kind] += 1
            self.words.setdefault(kind, Counter()).update(_words(text))
        return self.texts.total()

    def predict(self, texts: list[str]) -> list[tuple[str, float]]:
        """The likeliest class of each text, and how sure that is, from 0 to 1."""
        return [self._one(text) for text in texts]

    def _one(self, text: str) -> tuple[str, float]:
        known = len(set().union(*self.words.values()))
        logs: dict[str, float] = {}
        for kind, counts in self.words.items():
            total = counts.total() + known
            prior = math.log(self.texts[kind] / self.texts.total())
            logs[kind] = prior + sum(math.log((counts[word] + 1) / total) for word in _words(text))
        best = max(logs, key=lambda kind: logs[kind])
        return best, 1 / sum(math.exp(log - logs[best]) for log in logs.values())


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def main() -> list[tuple[str, float]]:
    """Classify a few texts, learn one more, classify again."""
    questions = ["a clever and warm evening", "poor and far too slow", "an odd little thing"]
    with Classifier.remote(REVIEWS) as model:
        for text, (kind, sure) in zip(questions, model.predict(questions), strict=True):
            print(f"{kind:>4}  {sure:4.0%}  {text}")
        print(f"learnt: {model.learn([('an odd little thing, I loved it', 'good')])} examples now")
        answers = model.predict(questions)
    print(f"{answers[-1][0]:>4}  {answers[-1][1]:4.0%}  {questions[-1]}")
    return answers


if __name__ == "__main__":
    main()

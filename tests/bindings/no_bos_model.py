#!/usr/bin/env python3
"""recall as a model whose prompts begin with nothing: no_bos_model.py KVC SOURCE OUT."""
import json
import os
import shutil
import subprocess
import sys
import tempfile


def main():
    kvc, source, out = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "recall")
        shutil.copytree(os.path.join(source, "models", "recall"), model,
                        ignore=shutil.ignore_patterns("scores", "*.py"))
        path = os.path.join(model, "tokenizer_config.json")
        with open(path, encoding="utf-8") as file:
            about = json.load(file)
        about["add_bos_token"] = False
        with open(path, "w", encoding="utf-8") as file:
            json.dump(about, file)
        subprocess.run([kvc, "convert", model, out], check=True)


if __name__ == "__main__":
    main()

"""Exports of fleetjob against transformers: compare.py FLEETJOB TEXT FOLDER…"""
import json
import os
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

PROMPTS = ["The License", "Hello, wörld\n  12 — 한국어 \U0001f642", " a"]
TOKENS = 30
failed = passed = 0


def check(what, good, detail=""):
    global failed, passed
    passed += good
    failed += not good
    if not good:
        print("FAIL:", what, detail)


def fleetjob(*arguments):
    return json.loads(subprocess.run([program, *arguments, "--json"], check=True, capture_output=True).stdout)


def loss_of(model, tokenizer, text):
    """Mean loss over samples as `fleetjob eval --all` cuts them."""
    context = model.config.max_position_embeddings
    ids = torch.tensor(tokenizer(text, truncation=False).input_ids)
    count = (len(ids) - 1) // context
    x, y = ids[: count * context].view(count, context), ids[1 : count * context + 1].view(count, context)
    with torch.no_grad():
        logits = model(x).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), y.flatten()).item()


def compare(folder, text):
    name = os.path.basename(folder)
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    model.eval()
    check(f"{name}: tensors", not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    check(f"{name}: size of the vocabulary", len(tokenizer) <= model.config.vocab_size, len(tokenizer))
    theirs, ours = loss_of(model, tokenizer, open(text, encoding="utf-8").read()), fleetjob("eval", folder, text, "--all")["loss"]
    check(f"{name}: loss", abs(theirs - ours) < 2e-5, f"{theirs} and ours {ours}")
    for prompt in PROMPTS:
        ours = fleetjob("generate", folder, "--prompt", prompt, "--tokens", str(TOKENS))
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        check(f"{name}: tokens of {prompt!r}", ids[0].tolist() == ours["promptTokens"], f"{ids[0].tolist()} and {ours['promptTokens']}")
        count = min(TOKENS, model.config.max_position_embeddings - ids.shape[1])
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0)
        made = made[0, ids.shape[1] :].tolist()
        check(f"{name}: text after {prompt!r}", made == ours["textTokens"][:count], f"{made} and {ours['textTokens']}")


program, text = sys.argv[1:3]
for folder in sys.argv[3:]:
    compare(folder, text)
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)

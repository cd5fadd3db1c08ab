"""A corpus of secrets, drawn anew from the forms their issuers document, and the ways they stand in text."""

from __future__ import annotations

import base64
import json
import random
import string
from urllib.parse import quote

HEX, DIGITS, UPPER = "0123456789abcdef", string.digits, string.ascii_uppercase + string.digits
WORD = string.ascii_letters + string.digits
URL_SAFE = WORD + "-_"
LOWER = string.ascii_lowercase + string.digits

# name: parts, each a constant or (alphabet, length)
BARE = {
    "hugging-face": ("hf_", (WORD, 34)),
    "hugging-face-org": ("api_org_", (WORD, 34)),
    "github": ("ghp_", (WORD, 36)),
    "github-app": ("ghs_", (WORD, 36)),
    "github-fine": ("github_pat_", (WORD, 22), "_", (WORD, 59)),
    "gitlab": ("glpat-", (URL_SAFE, 20)),
    "gitlab-runner": ("glrt-", (URL_SAFE, 20)),
    "gitlab-runner-registration": ("GR1348941", (URL_SAFE, 20)),
    "gitlab-deploy": ("gldt-", (URL_SAFE, 20)),
    "ngc": ("nvapi-", (URL_SAFE, 64)),
    "openai": ("sk-", (WORD, 48)),
    "openai-project": ("sk-proj-", (URL_SAFE, 74)),
    "anthropic": ("sk-ant-api03-", (URL_SAFE, 93)),
    "openrouter": ("sk-or-v1-", (HEX, 64)),
    "langfuse": ("sk-lf-", (HEX, 8), "-", (HEX, 4), "-", (HEX, 4), "-", (HEX, 4), "-", (HEX, 12)),
    "stripe": ("sk_live_", (WORD, 24)),
    "stripe-restricted": ("rk_live_", (WORD, 24)),
    "stripe-webhook": ("whsec_", (WORD, 32)),
    "elevenlabs": ("sk_", (HEX, 48)),
    "groq": ("gsk_", (WORD, 52)),
    "replicate": ("r8_", (WORD, 37)),
    "fireworks": ("fw_", (WORD, 24)),
    "perplexity": ("pplx-", (WORD, 48)),
    "xai": ("xai-", (WORD, 80)),
    "pinecone": ("pcsk_", (WORD, 60)),
    "langsmith": ("lsv2_pt_", (HEX, 32), "_", (HEX, 10)),
    "aws-id": ("AKIA", (UPPER, 16)),
    "aws-session": ("ASIA", (UPPER, 16)),
    "google-api": ("AIza", (URL_SAFE, 35)),
    "google-oauth": ("ya29.", (URL_SAFE, 60)),
    "google-client": ("GOCSPX-", (URL_SAFE, 28)),
    "slack-bot": ("xoxb-", (DIGITS, 12), "-", (DIGITS, 12), "-", (WORD, 24)),
    "slack-user": ("xoxp-", (DIGITS, 12), "-", (DIGITS, 12), "-", (HEX, 32)),
    "slack-app": ("xapp-1-A", (UPPER, 10), "-", (DIGITS, 13), "-", (HEX, 64)),
    "pypi": ("pypi-AgEIcHlwaS5vcmc", (URL_SAFE, 70)),
    "npm": ("npm_", (WORD, 36)),
    "rubygems": ("rubygems_", (HEX, 48)),
    "databricks": ("dapi", (HEX, 32)),
    "docker": ("dckr_pat_", (URL_SAFE, 27)),
    "sendgrid": ("SG.", (URL_SAFE, 22), ".", (URL_SAFE, 43)),
    "twilio": ("SK", (HEX, 32)),
    "mailgun": ("key-", (HEX, 32)),
    "mailchimp": ((HEX, 32), "-us12"),
    "brevo": ("xkeysib-", (HEX, 64), "-", (WORD, 16)),
    "vault": ("hvs.", (URL_SAFE, 90)),
    "vault-batch": ("hvb.", (URL_SAFE, 130)),
    "digitalocean": ("dop_v1_", (HEX, 64)),
    "newrelic": ("NRAK-", (UPPER, 27)),
    "grafana": ("glsa_", (WORD, 32), "_", (HEX, 8)),
    "sentry": ("sntryu_", (HEX, 64)),
    "doppler": ("dp.pt.", (WORD, 43)),
    "linear": ("lin_api_", (WORD, 40)),
    "figma": ("figd_", (URL_SAFE, 40)),
    "shopify": ("shpat_", (HEX, 32)),
    "square": ("sq0atp-", (URL_SAFE, 22)),
    "planetscale": ("pscale_tkn_", (URL_SAFE, 43)),
    "supabase": ("sbp_", (HEX, 40)),
    "age": ("AGE-SECRET-KEY-1", (UPPER, 58)),
    "tailscale": ("tskey-auth-", (WORD, 12), "-", (WORD, 22)),
    "atlassian": ("ATATT3xFfGF0", (URL_SAFE, 60), "=", (UPPER, 8)),
    "bitbucket": ("ATBB", (WORD, 32)),
    "circleci": ("CCIPAT_", (WORD, 22), "_", (HEX, 40)),
    "artifactory": ("AKCp", (WORD, 69)),
    "wandb-new": ("wandb_v1_", (WORD, 40)),
    "kaggle": ("KGAT_", (HEX, 32)),
    "terraform": ((WORD, 14), ".atlasv1.", (WORD, 60)),
    "airtable": ("pat", (WORD, 14), ".", (HEX, 64)),
    "telegram": ((DIGITS[1:], 10), ":", (URL_SAFE, 35)),
    "discord": ("M", (WORD, 25), ".", (WORD, 6), ".", (WORD, 30)),
    "azure-devops": ((WORD, 76), "AZDO", (WORD, 4)),
    "entra": ((WORD, 3), "8Q~", (WORD, 34)),
    "notion": ("ntn_", (DIGITS, 11), (WORD, 35)),
    "heroku": ("HRKU-", (URL_SAFE, 60)),
    "jwt": ("eyJhbGciOiJIUzI1NiJ9.eyJ", (URL_SAFE, 40), ".", (URL_SAFE, 43)),
    "unknown-form": ((WORD, 40),),
}
# Secrets without a form: known by the name they stand under.
NAMED = {
    "password": (WORD + "!%#", 12),
    "HF_TOKEN": (WORD, 20),
    "api_key": (LOWER, 16),
    "NGC_API_KEY": (WORD, 24),
    "SIGNING_KEY": (HEX, 24),
    "FERNET_KEY": (URL_SAFE, 43),
    "GITLAB_PAT": (WORD, 20),
    "AWS_SECRET_ACCESS_KEY": (WORD + "/+", 40),
    "client-key-data": (WORD, 80),
    "WANDB_API_KEY": (HEX, 40),
    "accessToken": (WORD, 20),
    "dbPassword": (WORD, 10),
}


def draw(rng: random.Random, parts: tuple[str | tuple[str, int], ...]) -> str:
    drawn = [part if isinstance(part, str) else "".join(rng.choices(part[0], k=part[1])) for part in parts]
    # an ending no form can do without
    return "".join(drawn)


def bare_secrets(seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    return [(name, draw(rng, parts)) for name, parts in BARE.items()]


def named_secrets(seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    return [(name, "a7X" + draw(rng, (form,))) for name, form in NAMED.items()]


def forms_of_bare(secret: str) -> dict[str, tuple[str, str]]:
    """Return texts with the secret in them, each with what must not be in the answer."""
    encoded = base64.b64encode(f"token {secret} in use".encode()).decode()
    return {
        "plain": (secret, secret),
        "sentence": (f"failed to log in with {secret}, giving up", secret),
        "variable": (f"docker run -e TOKEN_FOR_IT={secret} image", secret),
        "flag": (f"serve --hub-token {secret} --port 8000", secret),
        "prefixed": (f"[1,3]<stderr>: [TensorRT-LLM][ERROR] got {secret}", secret),
        "json": (json.dumps({"value": secret}), secret),
        "json-in-json": (json.dumps({"body": json.dumps({"value": secret})}), secret),
        "unicode-escaped": (json.dumps({"v": secret}).replace(secret[1], f"\\u{ord(secret[1]):04x}", 1), secret[2:]),
        "url": (f"https://host/path?next={secret}&x=1", secret),
        "url-encoded": (f"callback%3Fvalue%3D{quote(secret, safe='')}", quote(secret, safe="")),
        "zero-width": (f"value {secret[:9]}\u200b{secret[9:]}", secret[9:]),
        "base64": (f"body: {encoded}", encoded),
        "path": (f"/tmp/dump-of {secret}.txt", secret),
    }


def forms_of_named(name: str, secret: str) -> dict[str, str]:
    option = name.lower().replace("_", "-")
    return {
        "variable": f"{name}={secret}",
        "export": f"export {name}='{secret}'",
        "yaml": f"  {name}: {secret}",
        "json": json.dumps({"a": 1, name: secret}),
        "json-in-json": json.dumps({"body": json.dumps({name: secret})}),
        "python": f"{{'{name}': '{secret}', 'x': 2}}",
        "flag": f"serve --{option} {secret} --port 8000",
        "flag-equals": f"serve --{option.replace('-', '_')}={secret} --port 8000",
        "prefixed": f"[2026-11-18 10:00:00] rank 3: {name} = {secret}",
        "url-encoded": f"body={quote(name, safe='')}%3D{quote(secret, safe='')}",
        "zero-width": f"{name}={secret[:5]}\u200b{secret[5:]}",
    }

"""The words in which people complain, each set under one name, so that `[[evidence]]` patterns need not repeat them.

`{garbage}` in a pattern stands for the expression here.
"""

from __future__ import annotations

import re

SYMPTOM_WORDS = {
    "crash": r"crash\w*|segfault\w*|segmentation fault|abort\w*|\bdies\b|\bdied\b|killed|core dumped|sigsegv|terminate called|traceback",
    "fails": r"fail\w*|error|exception|traceback|does ?n[o']t work|not work\w*|cannot|can't|unable|refus\w+|crash\w*|abort\w*|assert\w*|broken|segfault|invalid",
    "hang": r"\bhang\w*|\bhung\b|\bstuck\b|dead ?lock\w*|freez\w+|\bfroze\b|never (?:return|finish|respond|complete|end)\w*|no (?:response|progress)|not respond\w*|unresponsive|blocks? forever|waits? forever|time[ds]? ?out|stall\w*",
    "wrong": r"garbage|gibberish|gar?bled|wrong|incorrect|mismatch\w*|differ\w*|bad (?:output|result|quality)|nonsense|inconsisten\w+|accura\w+|corrupt\w*|repeat\w*|repetit\w+|random (?:token|output|text|char)\w*|not (?:the )?(?:same|match|right|correct|equal|consistent)|hallucinat\w+|degrad\w+|(?<!<)<pad>|empty|\bnans?\b|unexpected\w* (?:output|result|token|text)|meaningless|weird|poor|worse|all zeros?|quality|!!!!",
    "slow": r"slow\w*|latency|throughput|tokens?(?: per |/ ?)s|\btpot\b|\bttft\b|\btps\b|performance|speed|faster|regress\w*|degrad\w+|takes? (?:long|too|\d+)|bottleneck|low(?:er)? (?:gpu )?util\w*",
    "oom": r"out[- ]of[- ]memory|\boom\b|outofmemory|cannot allocate|failed to allocate|insufficient memory|not enough memory|memory is insufficient|cuda error: 2\b",
    "memory": r"memory|vram|\bram\b|\brss\b|out[- ]of[- ]memory|\boom\b",
    "leak": r"leak\w*|memory (?:usage |consumption |use )?(?:keeps? |steadily |slowly |continuously )?(?:grow|increas|ris|climb)\w*|(?:grow|increas|ris|climb)\w*[^.\n]{0,40}(?:memory|\brss\b)|(?:memory|\brss\b|\bram\b)[^.\n]{0,60}(?:grow|increas|ris|climb|accumulat|never (?:freed|released))\w*",
    "said": r"(?!)",  # adds nothing: only says that the pattern's words are to be somebody's, or an error's
    "speculative": r"speculat\w+|\beagle[-_ ]?\d?|medusa|\bmtp\b|draft[-_ ](?:target|model|token|len)\w*|lookahead|redrafter|\bngram\b|relaxed_acceptance",
    "eagle": r"\beagle[-_ ]?\d?|eagle3",
    "mtp": r"\bmtp\b|num_nextn_predict_layers|multi[- ]token[- ]prediction",
    "guided": r"guided[-_ ]?decod\w*|xgrammar|llguidance|grammar|json[-_ ]?schema|response_format|structured (?:output|generation|decoding)|structural_tag|json_object|bitmask",
    "lora": r"\blora\w*|adapter",
    "disagg": r"disagg\w*|\bp/?d\b (?:disagg|separat)\w*|prefill[/-]decode|context[-_ ]only|generation[-_ ]only|cache_?transceiver|kv (?:cache )?transfer|\bnixl\b|\b1p1d\b|context server|ctx_?server",
    "multimodal": r"multi-?modal|vision|image\w*|\bvlm?\b|-vl\b|llava|pixtral|mllama|vila|audio|whisper|phi-?4-?mm|\bvideo",
    "encoder_decoder": r"\bt5\b|flan|\bbart\b|mbart|whisper|enc(?:oder)?[-_/ ]?dec(?:oder)?|cross[-_ ]attention|\bnmt\b|byt5|\bmt5\b",
    "moe": r"\bmoe\b|mixtral|expert|deepseek|qwen3?-?\d*b?-a\d+b|gpt-?oss|mixture of experts|\bdbrx\b|llama-?4|\bkimi\b|\bglm-?4\.[56]|minimax",
    "deepseek": r"deepseek|\bdsv?3\b|\bds[-_ ]?r1\b|\br1\b|\bkimi\b",
    "kv_reuse": r"(?:kv[-_ ]?cache|block|prefix|prompt)[-_ ]?(?:cache )?reuse|enable_block_reuse|prefix[-_ ]cach\w+|reuse of (?:the )?(?:kv|block|prefix)|enable_kv_cache_reuse|reus\w+ (?:the )?(?:kv|blocks?|prefix)",
    "chunked": r"chunked[-_ ]?(?:prefill|context)|enable_chunked\w*",
    "overlap": r"overlap[-_ ]?scheduler|disable_overlap",
    "cuda_graph": r"cuda[-_ ]?graphs?\w*|graph capture",
    "attention_dp": r"attention[-_ ]?dp|enable_attention_dp|\badp\b",
    "pipeline": r"\bpp(?:_size)? ?[=:]? ?[2-9]|pipeline[-_ ]parallel\w*|\bpp\b",
    "tensor_parallel": r"\btp(?:_size)? ?[=:]? ?(?:[2-9]|1\d)|tensor[-_ ]parallel\w*|\btp\d+|world_size ?[=:]? ?[2-9]|multi[- ]?gpu|\d+ ?(?:x|\*) ?(?:a|h|b|v|l)\d+|(?:two|four|eight|2|4|8) gpus",
    "streaming": r"stream(?:ing|ed|s)?\b|decoupled|\bsse\b",
    "triton": r"triton|tensorrtllm_backend|config\.pbtxt|inflight_batcher_llm|\bensemble\b|perf_analyzer|genai-perf",
    "fp8": r"\bfp8\b|\be4m3\b|float8",
    "fp4": r"\bnvfp4\b|\bfp4\b|mxfp4",
    "hopper": r"\bh100\b|\bh200\b|\bh20\b|\bgh200\b|hopper|sm_?90",
    "blackwell": r"\bb100\b|\bb200\b|\bb300\b|\bgb200\b|\bgb300\b|sm_?10[03]|blackwell",
    "sm120": r"rtx ?pro ?\d000|rtx ?50[5-9]0|\b50[5-9]0\b|sm_?12[01]|\bgb10\b|dgx ?spark",
    "ada": r"\bl4\b|\bl20\b|\bl40s?\b|rtx ?40\d0|\b4090\w?\b|rtx ?6000 ada|sm_?89|\bada\b",
    "logprobs": r"log_?prob\w*|generation_logits|context_logits|gather_\w*logits",
    "stop": r"stop[-_ ]?words?|stop[-_ ]?(?:token|string|sequence|criteria)\w*|\bstop\b ?[=:]|bad[-_ ]?words?|end_?id|eos",
    "beam": r"beam[-_ ]?(?:search|width|size)?\b|num_beams|beam_width",
    "sampling": r"temperature|top_?[kp]|sampl\w+|seed|penalt\w+|best_of|num_return_sequences",
}  # fmt: skip

_NAME = re.compile(r"\{([a-z_]\w*)\}")  # {2,5} is a count, not a name


def expand_symptom_words(pattern: str) -> str:
    """Return the pattern with each `{name}` replaced by the words it stands for; an unknown name is a KeyError."""
    return _NAME.sub(lambda match: f"(?:{SYMPTOM_WORDS[match[1]]})", pattern)


COMPLAINTS = frozenset({"crash", "fails", "hang", "wrong", "slow", "oom", "leak", "said"})


def is_complaint(pattern: str) -> bool:
    """Whether the pattern speaks of what is wrong, and not only of what was used."""
    return any(name in COMPLAINTS for name in _NAME.findall(pattern))

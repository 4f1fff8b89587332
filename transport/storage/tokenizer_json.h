#pragma once
#include "graph/base/status.h"
#include "transport/storage/tokenizer.h"

#include <memory>
#include <string>
#include <string_view>

namespace sgactor::transport {

/// Reads the text of a Hugging Face tokenizer.json whose model is BPE over bytes (each byte written
/// as one printable character, as GPT-2 does). `name` is for messages. Implemented: normalizer none
/// or NFC; pre-tokenizers Split (the patterns of GPT-2, Llama 3 and Qwen2), Digits, ByteLevel
/// without prefix space, and Sequence of them; added tokens that strip nothing; ignore_merges.
/// encode() adds no token that the post-processor would; begin_of_text() tells its first.
/// Errors: kInvalidArgument "NAME: …" where the file is cut or contradicts itself; kUnsupported
/// "NAME: …" naming what is not implemented.
Result<std::unique_ptr<Tokenizer>> parse_tokenizer_json(std::string_view json,
                                                        const std::string& name);

}  // namespace sgactor::transport

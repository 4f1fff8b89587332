#pragma once
#include "graph/base/status.h"
#include "transport/storage/tokenizer.h"

#include <memory>
#include <string>

namespace sgactor::transport {

/// A SentencePiece `.model` file, through the distribution's library. Text is encoded whole, but
/// very long text in parts of about 16 MiB that end at a newline. Errors: kInvalidArgument naming
/// the file.
Result<std::unique_ptr<Tokenizer>> open_sentencepiece(const std::string& path);

}  // namespace sgactor::transport

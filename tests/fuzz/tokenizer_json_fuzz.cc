// Input: a tokenizer.json. One that is accepted must encode any text to ids of its vocabulary that
// decode to that text (as it is after normalization), but for bytes that have no token.
#include "transport/storage/tokenizer_json.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

/// Is `decoded` the whole of `text`, but for bytes that the tokenizer knows no token of?
bool decodes_to(const sgactor::transport::Tokenizer& tokenizer, std::string_view decoded,
                std::string_view text) {
  for (const char byte : text) {
    if (!decoded.empty() && decoded.front() == byte) {
      decoded.remove_prefix(1);
    } else if (!tokenizer.encode(std::string_view(&byte, 1)).empty()) {
      return false;
    }
  }
  return decoded.empty();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = sgactor::transport::parse_tokenizer_json(json, "tokenizer.json");
  if (!tokenizer.ok()) {
    const sgactor::Code code = tokenizer.status().code();
    if (code != sgactor::Code::kInvalidArgument && code != sgactor::Code::kUnsupported)
      std::abort();
    return 0;
  }
  // Text that no normalization changes, then the input itself, which may change.
  const std::string plain = "The end'LL  12345\r\n\t<|endoftext|>a\xff\xc3\xa9 \xe4\xb8\x96";
  for (const std::string_view text : {std::string_view(plain), json.substr(0, 512)}) {
    const std::vector<int32_t> ids = (*tokenizer)->encode(text);
    for (const int32_t id : ids)
      if (id < 0 || id >= (*tokenizer)->vocab_size()) std::abort();
    const std::string decoded = (*tokenizer)->decode(ids);
    if (text.data() == plain.data() && !decodes_to(**tokenizer, decoded, plain)) std::abort();
  }
  return 0;
}

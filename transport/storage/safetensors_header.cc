// The header is read as a stream of events rather than into a tree, so that repeated names are
// seen and a hostile header costs memory in proportion to the tensors that it describes.
#include "transport/storage/safetensors.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

namespace sgactor::transport {

namespace {

using Entries = std::map<std::string, SafetensorsFile::Entry>;
using Metadata = std::map<std::string, std::string>;

constexpr size_t kMaxRank = 16;
constexpr std::string_view kMetadataKey = "__metadata__";

std::optional<DType> parse_safetensors_dtype(std::string_view name) {
  struct Row {
    std::string_view name;
    DType dtype;
  };
  static constexpr std::array<Row, 9> kRows = {{{"F64", DType::kF64},
                                                {"F32", DType::kF32},
                                                {"BF16", DType::kBF16},
                                                {"F16", DType::kF16},
                                                {"F8_E4M3", DType::kF8E4M3},
                                                {"F8_E5M2", DType::kF8E5M2},
                                                {"I64", DType::kI64},
                                                {"I32", DType::kI32},
                                                {"U8", DType::kU8}}};
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

/// A name fit for one line of an error: at most 80 bytes, control characters and bytes outside
/// ASCII replaced.
std::string printable(std::string_view name) {
  std::string out;
  for (const char c : name.substr(0, 80)) out += c >= 0x20 && c < 0x7f ? c : '?';
  return name.size() > 80 ? out + "..." : out;
}

/// One tensor's fields as they come in, in any order.
struct Pending {
  std::string name;
  std::optional<DType> dtype;
  std::optional<std::vector<int64_t>> shape;
  std::optional<std::vector<int64_t>> offsets;
};

class HeaderHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderHandler(int64_t data_bytes, Entries& entries, Metadata& metadata)
      : data_bytes_(data_bytes), entries_(entries), metadata_(metadata) {}

  [[nodiscard]] const Status& status() const { return status_; }

  bool null() override { return wrong_type("null"); }
  bool boolean(bool) override { return wrong_type("a truth value"); }
  bool number_integer(number_integer_t) override { return wrong_type("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return wrong_type("a number that is no integer");
  }
  bool binary(binary_t&) override { return wrong_type("binary data"); }
  bool number_unsigned(number_unsigned_t value) override;
  bool string(string_t& value) override;
  bool start_object(std::size_t) override;
  bool key(string_t& name) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    return fail(fmt::format("header: not JSON at byte {}", position));
  }

 private:
  enum class Where : uint8_t { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets, kDone };

  bool fail(const std::string& why) {
    if (status_.ok()) status_ = invalid_argument(why);
    return false;
  }
  bool fail_tensor(const std::string& why) {
    return fail(fmt::format("tensor {}: {}", printable(pending_.name), why));
  }
  bool wrong_type(std::string_view found);
  bool finish_tensor();

  int64_t data_bytes_;
  Entries& entries_;
  Metadata& metadata_;
  Status status_;
  Where where_ = Where::kStart;
  std::string key_;  ///< last key of the object that is open
  bool saw_metadata_ = false;
  Pending pending_;
};

bool HeaderHandler::wrong_type(std::string_view found) {
  switch (where_) {
    case Where::kStart:
    case Where::kDone:
      return fail(fmt::format("header: expected an object, found {}", found));
    case Where::kRoot:
      return fail(fmt::format("tensor {}: expected an object, found {}", printable(key_), found));
    case Where::kMetadata:
      return fail(fmt::format("header: {} \"{}\": expected text, found {}", kMetadataKey,
                              printable(key_), found));
    case Where::kTensor:
      return fail_tensor(fmt::format("{}: found {}", printable(key_), found));
    case Where::kShape:
    case Where::kOffsets:
      return fail_tensor(fmt::format("{}: expected an integer of at least 0, found {}",
                                     where_ == Where::kShape ? "shape" : "data_offsets", found));
  }
  return false;
}

bool HeaderHandler::number_unsigned(number_unsigned_t value) {
  if (where_ != Where::kShape && where_ != Where::kOffsets) return wrong_type("a number");
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return wrong_type("a number above 2^63");
  }
  auto& list = where_ == Where::kShape ? *pending_.shape : *pending_.offsets;
  const size_t most = where_ == Where::kShape ? kMaxRank : 2;
  if (list.size() == most) return fail_tensor(fmt::format("more than {} numbers in a list", most));
  list.push_back(static_cast<int64_t>(value));
  return true;
}

bool HeaderHandler::string(string_t& value) {
  if (where_ == Where::kMetadata) {
    metadata_[key_] = value;
    return true;
  }
  if (where_ != Where::kTensor || key_ != "dtype") return wrong_type("text");
  pending_.dtype = parse_safetensors_dtype(value);
  if (!pending_.dtype) {
    return fail_tensor(
        fmt::format("dtype {}: expected F64, F32, BF16, F16, F8_E4M3, F8_E5M2, I64, "
                    "I32 or U8",
                    printable(value)));
  }
  return true;
}

bool HeaderHandler::start_object(std::size_t) {
  if (where_ == Where::kStart) {
    where_ = Where::kRoot;
    return true;
  }
  if (where_ != Where::kRoot) return wrong_type("an object");
  if (key_ == kMetadataKey) {
    where_ = Where::kMetadata;
    return true;
  }
  where_ = Where::kTensor;
  pending_ = {};
  pending_.name = key_;
  return true;
}

bool HeaderHandler::key(string_t& name) {
  key_ = name;
  if (where_ == Where::kRoot) {
    if (name == kMetadataKey) {
      if (saw_metadata_) return fail(fmt::format("header: {} appears twice", kMetadataKey));
      saw_metadata_ = true;
    } else if (entries_.contains(name)) {
      return fail(fmt::format("tensor {}: the name appears twice", printable(name)));
    }
    return true;
  }
  if (where_ == Where::kMetadata) {
    if (metadata_.contains(name)) {
      return fail(fmt::format("header: {} \"{}\" appears twice", kMetadataKey, printable(name)));
    }
    return true;
  }
  const bool repeated = (name == "dtype" && pending_.dtype) ||
                        (name == "shape" && pending_.shape) ||
                        (name == "data_offsets" && pending_.offsets);
  if (repeated) return fail_tensor(fmt::format("{} appears twice", name));
  if (name != "dtype" && name != "shape" && name != "data_offsets") {
    return fail_tensor(
        fmt::format("unknown key {}; expected dtype, shape, data_offsets", printable(name)));
  }
  return true;
}

bool HeaderHandler::start_array(std::size_t) {
  if (where_ != Where::kTensor || key_ == "dtype") return wrong_type("a list");
  where_ = key_ == "shape" ? Where::kShape : Where::kOffsets;
  (where_ == Where::kShape ? pending_.shape : pending_.offsets).emplace();
  return true;
}

bool HeaderHandler::end_array() {
  where_ = Where::kTensor;
  return true;
}

bool HeaderHandler::end_object() {
  if (where_ == Where::kRoot) {
    where_ = Where::kDone;
    return true;
  }
  const bool is_tensor = where_ == Where::kTensor;
  where_ = Where::kRoot;
  return !is_tensor || finish_tensor();
}

bool HeaderHandler::finish_tensor() {
  if (!pending_.dtype) return fail_tensor("dtype is missing");
  if (!pending_.shape) return fail_tensor("shape is missing");
  if (!pending_.offsets || pending_.offsets->size() != 2) {
    return fail_tensor("data_offsets: expected [begin, end]");
  }
  int64_t bytes = dtype_bytes(*pending_.dtype);
  for (const int64_t extent : *pending_.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return fail_tensor("the shape has more than 2^63 bytes");
    }
  }
  const int64_t begin = (*pending_.offsets)[0];
  const int64_t end = (*pending_.offsets)[1];
  if (begin > end || end > data_bytes_) {
    return fail_tensor(
        fmt::format("range [{}, {}) is not inside the {} bytes of data", begin, end, data_bytes_));
  }
  const TensorType type{*pending_.dtype, Shape(std::move(*pending_.shape))};
  if (end - begin != bytes) {
    return fail_tensor(
        fmt::format("range of {} bytes, but {} has {}", end - begin, type.to_string(), bytes));
  }
  entries_.emplace(std::move(pending_.name), SafetensorsFile::Entry{type, begin});
  return true;
}

/// Ranges in order of offset must touch: the first starts at 0, the last ends with the data.
Status check_coverage(const Entries& entries, int64_t data_bytes) {
  using Item = Entries::const_pointer;
  std::vector<Item> order;
  order.reserve(entries.size());
  for (const auto& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](Item a, Item b) {
    // Empty tensors first: they lie between others without taking room.
    return std::pair(a->second.offset, a->second.type.bytes()) <
           std::pair(b->second.offset, b->second.type.bytes());
  });
  int64_t end = 0;
  for (const Item item : order) {
    const int64_t begin = item->second.offset;
    if (begin < end) {
      return invalid_argument(fmt::format("tensor {}: its range at byte {} overlaps another's",
                                          printable(item->first), begin));
    }
    if (begin > end) {
      return invalid_argument(fmt::format("tensor {}: a hole of {} bytes before its range",
                                          printable(item->first), begin - end));
    }
    end = begin + item->second.type.bytes();
  }
  if (end != data_bytes) {
    return invalid_argument(fmt::format(
        "{} trailing bytes after the last tensor, which ends at byte {}", data_bytes - end, end));
  }
  return {};
}

}  // namespace

Result<std::map<std::string, SafetensorsFile::Entry>> parse_safetensors_header(
    std::string_view json, int64_t data_bytes, std::map<std::string, std::string>* metadata) {
  Entries entries;
  Metadata found;
  if (json.empty() || json.front() != '{') {
    return invalid_argument("header: expected a JSON object that starts with {");
  }
  HeaderHandler handler(data_bytes, entries, found);
  try {
    if (!nlohmann::json::sax_parse(json, &handler)) {
      if (!handler.status().ok()) return handler.status();
      return invalid_argument("header: not JSON");
    }
  } catch (const std::exception& e) {
    return invalid_argument(fmt::format("header: {}", e.what()));
  }
  SGA_TRY(check_coverage(entries, data_bytes));
  if (metadata != nullptr) *metadata = std::move(found);
  return entries;
}

}  // namespace sgactor::transport

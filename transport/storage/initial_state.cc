#include "transport/storage/initial_state.h"

#include "graph/base/hash.h"
#include "graph/base/philox.h"

#include <fmt/format.h>

#include <cstring>
#include <map>

namespace sgactor::transport {

namespace {

template <class T>
void fill(const InitialParameter& p, uint64_t seed, std::span<std::byte> out) {
  const PhiloxStream stream{seed, hash64(p.name)};
  const size_t count = out.size() / sizeof(T);
  for (size_t i = 0; i < count; ++i) {
    const double value = p.one ? 1.0 : p.std == 0 ? 0.0 : p.std * stream.normal(i);
    const T element = static_cast<T>(value);
    std::memcpy(out.data() + i * sizeof(T), &element, sizeof(T));
  }
}

class InitialState final : public StateSource {
 public:
  InitialState(std::vector<InitialParameter> parameters, uint64_t seed) : seed_(seed) {
    for (InitialParameter& p : parameters) {
      std::string name = p.name;
      parameters_.emplace(std::move(name), std::move(p));
    }
  }

  Status load(const std::string& name, const TensorType& type,
              std::span<std::byte> out) const override {
    const auto it = parameters_.find(name);
    if (it == parameters_.end()) {
      return invalid_argument(fmt::format("initial state: no parameter {}", name));
    }
    const InitialParameter& p = it->second;
    const bool known = type.dtype == DType::kF32 || type.dtype == DType::kF64;
    if (p.type != type || !known || static_cast<int64_t>(out.size()) != type.bytes()) {
      return invalid_argument(
          fmt::format("initial state: parameter {}: expected {} in {} bytes, found {}", name,
                      type.to_string(), out.size(), p.type.to_string()));
    }
    if (type.dtype == DType::kF32) {
      fill<float>(p, seed_, out);
    } else {
      fill<double>(p, seed_, out);
    }
    return {};
  }

 private:
  std::map<std::string, InitialParameter> parameters_;
  uint64_t seed_;
};

class ZeroMoments final : public StateSource {
 public:
  explicit ZeroMoments(std::shared_ptr<const StateSource> parameters)
      : parameters_(std::move(parameters)) {}

  Status load(const std::string& name, const TensorType& type,
              std::span<std::byte> out) const override {
    if (!name.starts_with("m/") && !name.starts_with("v/")) {
      return parameters_->load(name, type, out);
    }
    if (static_cast<int64_t>(out.size()) != type.bytes()) {
      return internal_error(
          fmt::format("tensor {}: {} bytes of room for {}", name, out.size(), type.to_string()));
    }
    std::fill(out.begin(), out.end(), std::byte{0});
    return {};
  }

 private:
  std::shared_ptr<const StateSource> parameters_;
};

}  // namespace

std::unique_ptr<StateSource> make_initial_state(std::vector<InitialParameter> parameters,
                                                uint64_t seed) {
  return std::make_unique<InitialState>(std::move(parameters), seed);
}

std::unique_ptr<StateSource> with_zero_moments(std::shared_ptr<const StateSource> parameters) {
  return std::make_unique<ZeroMoments>(std::move(parameters));
}

}  // namespace sgactor::transport

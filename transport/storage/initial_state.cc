#include "transport/storage/initial_state.h"

#include "graph/base/hash.h"
#include "graph/base/standard_normal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>

namespace sgactor::transport {

namespace {

template <class T>
void fill_range(const NormalNumbers& numbers, T* out, size_t first, size_t last) {
  for (size_t i = first; i < last; ++i) out[i] = static_cast<T>(normal_number(numbers, i));
}

/// Elements depend on nothing but their numbers, so threads share them as they like.
template <class T>
void fill(const NormalNumbers& numbers, std::span<std::byte> bytes) {
  constexpr size_t kLeastForThread = 1 << 18;
  auto* out = reinterpret_cast<T*>(bytes.data());
  const size_t count = bytes.size() / sizeof(T);
  const size_t cores = std::max<size_t>(std::thread::hardware_concurrency(), 1);
  const size_t threads = std::clamp<size_t>(count / kLeastForThread, 1, cores);
  std::vector<std::jthread> helpers;
  for (size_t t = 1; t < threads; ++t) {
    helpers.emplace_back(
        [&, t] { fill_range(numbers, out, count * t / threads, count * (t + 1) / threads); });
  }
  fill_range(numbers, out, 0, count / threads);
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
      fill<float>(rule(p), out);
    } else {
      fill<double>(rule(p), out);
    }
    return {};
  }
  [[nodiscard]] std::optional<NormalNumbers> numbers(const std::string& name,
                                                     const TensorType& type) const override {
    const auto it = parameters_.find(name);
    if (it == parameters_.end() || it->second.type != type) return std::nullopt;
    return rule(it->second);
  }

 private:
  [[nodiscard]] NormalNumbers rule(const InitialParameter& p) const {
    return {PhiloxStream{seed_, hash64(p.name)}, p.one ? 1.0 : 0.0, p.one ? 0.0 : p.std};
  }

  std::map<std::string, InitialParameter> parameters_;
  uint64_t seed_;
};

/// Names of state that starts at zero: the optimizer's moments, and what is known of tensors that
/// are rounded to 8 bits.
bool starts_at_zero(const std::string& name) {
  return name.starts_with("m/") || name.starts_with("v/") || name.starts_with("amax/");
}

class ZeroMoments final : public StateSource {
 public:
  explicit ZeroMoments(std::shared_ptr<const StateSource> parameters)
      : parameters_(std::move(parameters)) {}

  Status load(const std::string& name, const TensorType& type,
              std::span<std::byte> out) const override {
    if (!starts_at_zero(name)) {
      return parameters_->load(name, type, out);
    }
    if (static_cast<int64_t>(out.size()) != type.bytes()) {
      return internal_error(
          fmt::format("tensor {}: {} bytes of room for {}", name, out.size(), type.to_string()));
    }
    std::fill(out.begin(), out.end(), std::byte{0});
    return {};
  }
  [[nodiscard]] bool is_zero(const std::string& name) const override {
    return starts_at_zero(name) || parameters_->is_zero(name);
  }
  [[nodiscard]] std::optional<NormalNumbers> numbers(const std::string& name,
                                                     const TensorType& type) const override {
    return starts_at_zero(name) ? std::nullopt : parameters_->numbers(name, type);
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

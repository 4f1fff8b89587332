#include "kernels/cuda/executable.h"

#include "kernels/cuda/cuda_status.h"

#include <algorithm>

namespace sgactor::kernels::cuda {

Status CudaExecutable::resolve(const LaunchArgs& args) const {
  if (args.inputs.size() != num_inputs_ || args.outputs.size() != outputs_.size() ||
      (args.workspace == nullptr && workspace_bytes_ > 0) ||
      (args.scratch == nullptr && scratch_bytes_ > 0)) {
    return invalid_argument(name_ + ": a launch takes " + std::to_string(num_inputs_) +
                            " inputs, " + std::to_string(outputs_.size()) +
                            " outputs, its workspace and its scratch");
  }
  for (size_t v = 0; v < places_.size(); ++v) {
    const Place& place = places_[v];
    const auto index = static_cast<size_t>(place.index);
    std::byte* base = place.space == Place::Space::kInput    ? args.inputs[index]
                      : place.space == Place::Space::kOutput ? args.outputs[index]
                                                             : args.workspace;
    resolved_[v] = constants_[v] != nullptr ? constants_[v] : base + place.offset;
  }
  return {};
}

Status CudaExecutable::run(const LaunchArgs& args, cudaStream_t stream,
                           const CheckPlace& check) const {
  SGA_TRY(resolve(args));
  const Frame frame{resolved_.data(), args.scratch, stream, check};
  for (const Step& step : steps_) {
    Status s = device_->profile() == nullptr
                   ? step.run(frame)
                   : device_->profile()->time(step.work, stream, [&] { return step.run(frame); });
    if (!s.ok()) return s.with_context(name_ + ": " + step.work.family);
  }
  // A value may be several outputs, or an output and an input; it has one place, and the other
  // outputs get copies.
  for (size_t j = 0; j < outputs_.size(); ++j) {
    const std::byte* from = resolved_[outputs_[j]];
    if (from == args.outputs[j] || output_bytes_[j] == 0) continue;
    SGA_CUDA_TRY(cudaMemcpyAsync(args.outputs[j], from, static_cast<size_t>(output_bytes_[j]),
                                 cudaMemcpyDeviceToDevice, stream));
  }
  return {};
}

}  // namespace sgactor::kernels::cuda

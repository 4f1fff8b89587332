#include "kernels/cuda/executable.h"

#include "graph/base/log.h"
#include "kernels/cuda/cuda_status.h"

#include <algorithm>

namespace sgactor::kernels::cuda {

CudaExecutable::~CudaExecutable() {
  // Graphs are destroyed with their device current.
  if (!recorded_.empty()) static_cast<void>(device_->use().ok());
}

void CudaExecutable::cut_pieces() {
  pieces_.clear();
  for (size_t i = 0; i < steps_.size(); ++i) {
    const bool joins = !steps_[i].waits && !pieces_.empty() && !pieces_.back().waits;
    if (joins) {
      pieces_.back().end = i + 1;
    } else {
      pieces_.push_back({i, i + 1, steps_[i].waits});
    }
  }
  // Outputs are copied after all steps, by a piece that does not wait.
  if (pieces_.empty() || pieces_.back().waits)
    pieces_.push_back({steps_.size(), steps_.size(), false});
}

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
  const ReplayKeys::Turn turn = device_->records_graphs() ? keys_.next(args) : ReplayKeys::Turn{};
  switch (turn.way) {
    case ReplayKeys::Way::kReplay:
      return run_recorded(turn.key, frame, args);
    case ReplayKeys::Way::kRecord:
      return run_recording(turn.key, frame, args);
    case ReplayKeys::Way::kPlain:
      break;
  }
  device_->launches().add_plain();
  return run_plain(0, frame, args);
}

Status CudaExecutable::run_plain(size_t first_piece, const Frame& frame,
                                 const LaunchArgs& args) const {
  for (size_t i = first_piece; i < pieces_.size(); ++i) SGA_TRY(run_piece(pieces_[i], frame, args));
  return {};
}

Status CudaExecutable::run_recorded(int32_t key, const Frame& frame, const LaunchArgs& args) const {
  const std::vector<RecordedGraph>& graphs = recorded_[static_cast<size_t>(key)];
  bool replayed = false;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (graphs[i].empty()) {
      SGA_TRY(run_piece(pieces_[i], frame, args));
    } else {
      SGA_TRY(graphs[i].launch(frame.stream).with_context(name_ + ": replay"));
      replayed = true;
    }
  }
  replayed ? device_->launches().add_replayed() : device_->launches().add_plain();
  return {};
}

Status CudaExecutable::run_recording(int32_t key, const Frame& frame,
                                     const LaunchArgs& args) const {
  device_->launches().add_plain();
  std::vector<RecordedGraph> graphs(pieces_.size());
  int64_t num_graphs = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (!piece.waits) {
      auto graph =
          RecordedGraph::record(frame.stream, [&] { return run_piece(piece, frame, args); });
      if (!graph.ok()) {
        keys_.give_up();
        log::warn("{} is not recorded: {}", name_, graph.status().message());
        return run_plain(i, frame, args);
      }
      graphs[i] = std::move(*graph);
    }
    if (graphs[i].empty()) {
      SGA_TRY(run_piece(piece, frame, args));
    } else {
      ++num_graphs;
      SGA_TRY(graphs[i].launch(frame.stream).with_context(name_ + ": first replay"));
    }
  }
  if (recorded_.size() <= static_cast<size_t>(key)) recorded_.resize(static_cast<size_t>(key) + 1);
  recorded_[static_cast<size_t>(key)] = std::move(graphs);
  keys_.recorded(key);
  device_->launches().add_graphs(num_graphs);
  return {};
}

Status CudaExecutable::run_piece(const Piece& piece, const Frame& frame,
                                 const LaunchArgs& args) const {
  for (size_t i = piece.begin; i < piece.end; ++i) {
    const Step& step = steps_[i];
    Status s =
        device_->profile() == nullptr
            ? step.run(frame)
            : device_->profile()->time(step.work, frame.stream, [&] { return step.run(frame); });
    if (!s.ok()) return s.with_context(name_ + ": " + step.work.family);
  }
  return piece.end == steps_.size() && !piece.waits ? copy_outputs(frame, args) : Status();
}

Status CudaExecutable::copy_outputs(const Frame& frame, const LaunchArgs& args) const {
  // A value may be several outputs, or an output and an input; it has one place, and the other
  // outputs get copies.
  for (size_t j = 0; j < outputs_.size(); ++j) {
    const std::byte* from = resolved_[outputs_[j]];
    if (from == args.outputs[j] || output_bytes_[j] == 0) continue;
    SGA_CUDA_TRY(cudaMemcpyAsync(args.outputs[j], from, static_cast<size_t>(output_bytes_[j]),
                                 cudaMemcpyDeviceToDevice, frame.stream));
  }
  return {};
}

}  // namespace sgactor::kernels::cuda

#include "transport/storage/checkpoint.h"

#include "transport/storage/chunk_store.h"
#include "transport/storage/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <set>
#include <unordered_map>

namespace sgactor::transport {
namespace {

constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

/// A file that a whole checkpoint has. Its absence is damage, not a wrong argument.
Result<std::string> read_part(const FileSystem& files, const std::string& path) {
  Result<std::string> text = files.read(path, kMaxManifestBytes);
  if (text.status().code() == Code::kInvalidArgument) return corruption(text.status().message());
  return text;
}

Result<CheckpointInfo> read_info(const FileSystem& files, const std::string& step_dir) {
  const std::string commit_path = step_dir + "/COMMIT";
  const std::string manifest_path = step_dir + "/manifest.bin";
  SGA_ASSIGN(const std::string commit, read_part(files, commit_path));
  SGA_ASSIGN(const std::string manifest, read_part(files, manifest_path));
  if (commit != commit_text(manifest))
    return corruption(fmt::format("{}: does not fit {}: one of them is cut or altered", commit_path,
                                  manifest_path));
  SGA_ASSIGN(CheckpointInfo info, parse_manifest(manifest, manifest_path));
  info.path = step_dir;
  return info;
}

/// Calls `f(hash, size)` for each different chunk; stops at the first error.
template <class F>
Status for_each_chunk(const CheckpointInfo& info, F&& f) {
  std::set<Hash128> seen;
  const auto visit = [&](const std::vector<Hash128>& chunks, int64_t bytes) -> Status {
    for (size_t i = 0; i < chunks.size(); ++i)
      if (seen.insert(chunks[i]).second)
        SGA_TRY(f(chunks[i], chunk_size(bytes, info.chunk_bytes, static_cast<int64_t>(i))));
    return {};
  };
  for (const TensorRecord& tensor : info.tensors) {
    SGA_TRY(visit(tensor.chunks, tensor.type.bytes()));
    for (const PieceRecord& piece : tensor.pieces)
      SGA_TRY(visit(piece.chunks, piece.slice.count * dtype_bytes(tensor.type.dtype)));
  }
  return {};
}

/// Whether every chunk is there with its size. Reads none. Errors: kCorruption naming the chunk.
Status check_chunks(const FileSystem& files, const std::string& chunks,
                    const CheckpointInfo& info) {
  return for_each_chunk(info, [&](const Hash128& hash, int64_t size) -> Status {
    const std::string path = chunk_path(chunks, hash);
    SGA_ASSIGN(const FileSystem::Info chunk, files.info(path));
    if (!chunk.exists || chunk.is_directory) return corruption(path + ": no such file");
    if (chunk.size_bytes != size)
      return corruption(fmt::format("{}: has {} bytes, {} expected", path, chunk.size_bytes, size));
    return {};
  });
}

class StoredCheckpoint : public Checkpoint {
 public:
  StoredCheckpoint(CheckpointInfo info, std::string chunks, std::shared_ptr<const FileSystem> files)
      : info_(std::move(info)), chunks_(std::move(chunks)), files_(std::move(files)) {
    for (const TensorRecord& tensor : info_.tensors) by_name_.emplace(tensor.name, &tensor);
  }
  [[nodiscard]] const CheckpointInfo& info() const override { return info_; }

  Status load(const std::string& name, const TensorType& type,
              std::span<std::byte> out) const override {
    const auto found = by_name_.find(name);
    if (found == by_name_.end())
      return invalid_argument(fmt::format("{}: has no tensor {}", info_.path, name));
    const TensorRecord& tensor = *found->second;
    if (tensor.type != type)
      return invalid_argument(fmt::format("{}: tensor {} is {}, {} expected", info_.path, name,
                                          tensor.type.to_string(), type.to_string()));
    if (std::ssize(out) != type.bytes())
      return invalid_argument(fmt::format("{}: tensor {} has {} bytes, room for {} was given",
                                          info_.path, name, type.bytes(), out.size()));
    if (tensor.pieces.empty())
      return read_chunks(tensor.chunks, out).with_context("tensor " + name);
    std::vector<std::byte> bytes;
    for (const PieceRecord& piece : tensor.pieces) {
      bytes.resize(static_cast<size_t>(piece.slice.count * dtype_bytes(type.dtype)));
      SGA_TRY(read_chunks(piece.chunks, bytes).with_context("tensor " + name));
      join_slice(bytes, type, piece.slice, out);
    }
    return {};
  }

 private:
  Status read_chunks(const std::vector<Hash128>& chunks, std::span<std::byte> out) const {
    for (size_t i = 0; i < chunks.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      const auto size = static_cast<size_t>(chunk_size(std::ssize(out), info_.chunk_bytes, index));
      SGA_TRY(read_chunk(*files_, chunks_, chunks[i],
                         out.subspan(static_cast<size_t>(index * info_.chunk_bytes), size)));
    }
    return {};
  }

  CheckpointInfo info_;
  std::string chunks_;
  std::shared_ptr<const FileSystem> files_;
  std::unordered_map<std::string, const TensorRecord*> by_name_;
};

Status check_tensors(int64_t step, const std::vector<StoredTensor>& tensors,
                     const WriteOptions& options) {
  if (step < 0 || options.chunk_bytes <= 0)
    return invalid_argument(
        fmt::format("checkpoint of step {} in chunks of {} bytes", step, options.chunk_bytes));
  std::set<std::string_view> names;
  for (const StoredTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      return invalid_argument(fmt::format("checkpoint: tensor {} is there twice", tensor.name));
    int64_t bytes = tensor.type.bytes();
    if (tensor.slice) {
      SGA_TRY(check_slice(tensor.type.shape, *tensor.slice).with_context("tensor " + tensor.name));
      bytes = tensor.slice->count * dtype_bytes(tensor.type.dtype);
    }
    if (std::ssize(tensor.bytes) != bytes)
      return invalid_argument(fmt::format("checkpoint: tensor {} is {} but has {} bytes",
                                          tensor.name, tensor.type.to_string(),
                                          tensor.bytes.size()));
  }
  return {};
}

Result<std::vector<Hash128>> add_chunks(ChunkWriter& writer, std::span<const std::byte> bytes,
                                        int64_t chunk_bytes) {
  std::vector<Hash128> chunks;
  for (int64_t at = 0, i = 0; at < std::ssize(bytes); at += chunk_bytes, ++i) {
    const auto size = static_cast<size_t>(chunk_size(std::ssize(bytes), chunk_bytes, i));
    SGA_ASSIGN(const Hash128 hash, writer.add(bytes.subspan(static_cast<size_t>(at), size)));
    chunks.push_back(hash);
  }
  return chunks;
}

/// Stores the chunks and puts their names in info.tensors.
Status write_chunks(ChunkWriter& writer, const std::vector<StoredTensor>& tensors,
                    CheckpointInfo& info) {
  info.tensors.clear();
  for (const StoredTensor& tensor : tensors) {
    TensorRecord record{tensor.name, tensor.type, tensor.segment, {}, {}};
    if (!tensor.slice) {
      SGA_ASSIGN(record.chunks, add_chunks(writer, tensor.bytes, info.chunk_bytes));
    } else {
      PieceRecord piece{*tensor.slice, {}};
      const int64_t room = range_elements(tensor.type.shape, piece.slice) - piece.slice.first;
      piece.slice.count = std::clamp<int64_t>(room, 0, piece.slice.count);
      if (num_real_elements(tensor.type.shape, piece.slice) == 0) continue;  // padding only
      const auto bytes = static_cast<size_t>(piece.slice.count * dtype_bytes(tensor.type.dtype));
      SGA_ASSIGN(piece.chunks,
                 add_chunks(writer, tensor.bytes.subspan(0, bytes), info.chunk_bytes));
      record.pieces.push_back(std::move(piece));
    }
    info.tensors.push_back(std::move(record));
  }
  return writer.finish();
}

/// Puts a tensor of a part with those there are.
Status merge_tensor(CheckpointInfo& info, std::map<std::string, size_t>& places,
                    TensorRecord tensor) {
  const auto [place, first] = places.emplace(tensor.name, info.tensors.size());
  if (first) {
    info.tensors.push_back(std::move(tensor));
    return {};
  }
  TensorRecord& there = info.tensors[place->second];
  if (there.pieces.empty() || tensor.pieces.empty() || there.type != tensor.type)
    return invalid_argument(fmt::format("tensor {} is there twice", tensor.name));
  std::move(tensor.pieces.begin(), tensor.pieces.end(), std::back_inserter(there.pieces));
  return {};
}

/// Puts the tensors of all parts in `info`.
Status merge_parts(CheckpointInfo& info, const std::vector<std::string>& parts) {
  info.tensors.clear();
  info.chunk_bytes = 0;
  std::map<std::string, size_t> places;
  for (size_t p = 0; p < parts.size(); ++p) {
    const std::string name = fmt::format("part {} of the checkpoint of step {}", p, info.step);
    SGA_ASSIGN(CheckpointInfo part, parse_manifest(parts[p], name, true));
    if (info.chunk_bytes == 0) info.chunk_bytes = part.chunk_bytes;
    if (part.step != info.step || part.chunk_bytes != info.chunk_bytes)
      return invalid_argument(fmt::format("{}: is of step {}, in chunks of {} bytes", name,
                                          part.step, part.chunk_bytes));
    for (TensorRecord& tensor : part.tensors)
      SGA_TRY(merge_tensor(info, places, std::move(tensor)).with_context(name));
  }
  if (info.chunk_bytes == 0) return invalid_argument("a checkpoint of no parts");
  for (const TensorRecord& tensor : info.tensors)
    SGA_TRY(check_pieces(tensor).with_context(fmt::format("checkpoint of step {}", info.step)));
  return {};
}

/// Chunks must be durable already. An old COMMIT may stay until it is replaced: it does not fit the
/// new manifest.
Status commit_step(FileSystem& files, const std::string& root, const std::string& step_dir,
                   const std::string& manifest) {
  SGA_TRY(files.make_directory(step_dir));
  SGA_TRY(replace_file(files, step_dir + "/manifest.bin", manifest));
  SGA_TRY(files.sync_directory(root));
  return replace_file(files, step_dir + "/COMMIT", commit_text(manifest));
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& step_dir,
                                                     std::shared_ptr<const FileSystem> files) {
  if (!files) files = std::make_shared<PosixFileSystem>();
  SGA_ASSIGN(CheckpointInfo info, read_info(*files, step_dir));
  const std::string chunks = parent_directory(step_dir) + "/chunks";
  SGA_TRY(check_chunks(*files, chunks, info));
  return std::unique_ptr<Checkpoint>(
      std::make_unique<StoredCheckpoint>(std::move(info), chunks, std::move(files)));
}

Status verify_checkpoint(const std::string& step_dir, std::shared_ptr<const FileSystem> files) {
  if (!files) files = std::make_shared<PosixFileSystem>();
  SGA_ASSIGN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(step_dir, files));
  const std::string chunks = parent_directory(step_dir) + "/chunks";
  std::vector<std::byte> buffer;
  return for_each_chunk(checkpoint->info(), [&](const Hash128& hash, int64_t size) {
    buffer.resize(static_cast<size_t>(size));
    return read_chunk(*files, chunks, hash, buffer);
  });
}

Result<WrittenPart> write_part(const std::string& root, int64_t step,
                               const std::vector<StoredTensor>& tensors,
                               const WriteOptions& options, std::shared_ptr<FileSystem> files) {
  const auto start = std::chrono::steady_clock::now();
  if (!files) files = std::make_shared<PosixFileSystem>();
  SGA_TRY(check_tensors(step, tensors, options));
  const std::string chunks = root + "/chunks";
  SGA_TRY(make_directories(*files, chunks));
  CheckpointInfo info;
  info.step = step;
  info.chunk_bytes = options.chunk_bytes;
  ChunkWriter writer(*files, chunks, options.writer, options.check_reused);
  SGA_TRY(write_chunks(writer, tensors, info));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return WrittenPart{serialize_manifest(info),
                     {writer.bytes_written(), writer.bytes_reused(), elapsed.count()}};
}

Result<std::string> commit_checkpoint(const std::string& root, CheckpointInfo info,
                                      const std::vector<std::string>& parts,
                                      std::shared_ptr<FileSystem> files) {
  if (!files) files = std::make_shared<PosixFileSystem>();
  SGA_TRY(merge_parts(info, parts));
  std::string step_dir = fmt::format("{}/step-{:08}", root, info.step);
  // A part may have been written below another root, or its chunks be gone since.
  SGA_TRY(check_chunks(*files, root + "/chunks", info)
              .with_context(fmt::format("checkpoint of step {}", info.step)));
  SGA_TRY(commit_step(*files, root, step_dir, serialize_manifest(info)));
  return step_dir;
}

Result<WriteStats> write_checkpoint(const std::string& root, CheckpointInfo info,
                                    const std::vector<NamedTensor>& tensors,
                                    const std::vector<std::string>& segments,
                                    const WriteOptions& options,
                                    std::shared_ptr<FileSystem> files) {
  const auto start = std::chrono::steady_clock::now();
  if (!files) files = std::make_shared<PosixFileSystem>();
  if (!segments.empty() && segments.size() != tensors.size())
    return invalid_argument(
        fmt::format("checkpoint of {} tensors with {} segments", tensors.size(), segments.size()));
  std::vector<StoredTensor> stored;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const NamedTensor& t = tensors[i];
    stored.push_back({t.name, t.type, {}, t.bytes, segments.empty() ? "" : segments[i]});
  }
  SGA_ASSIGN(WrittenPart part, write_part(root, info.step, stored, options, files));
  SGA_TRY(commit_checkpoint(root, std::move(info), {std::move(part.part)}, files).status());
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  part.stats.seconds = elapsed.count();
  return part.stats;
}

}  // namespace sgactor::transport

#include "transport/storage/chunk_store.h"

namespace sgactor::transport {
namespace {

constexpr size_t kMaxPendingFiles = 64;  // bounds the open descriptors

std::string chunk_directory(const std::string& dir, const Hash128& hash) {
  return dir + "/" + hash.hex().substr(0, 2);
}

}  // namespace

std::string chunk_path(const std::string& dir, const Hash128& hash) {
  return chunk_directory(dir, hash) + "/" + hash.hex() + ".bin";
}

Status read_chunk(const FileSystem& files, const std::string& dir, const Hash128& hash,
                  std::span<std::byte> out) {
  const std::string path = chunk_path(dir, hash);
  SGA_TRY(files.read_exact(path, out));
  if (hash128(out) != hash)
    return corruption(path + ": its bytes do not have the hash it is named by");
  return {};
}

ChunkWriter::ChunkWriter(FileSystem& files, std::string dir, std::string writer, bool check_reused)
    : files_(files),
      dir_(std::move(dir)),
      writer_(std::move(writer)),
      check_reused_(check_reused) {}

Result<bool> ChunkWriter::is_there(const Hash128& hash, std::span<const std::byte> bytes) {
  const std::string path = chunk_path(dir_, hash);
  SGA_ASSIGN(const FileSystem::Info info, files_.info(path));
  if (!info.exists || info.is_directory || info.size_bytes != std::ssize(bytes)) return false;
  if (!check_reused_) return true;
  std::vector<std::byte> stored(bytes.size());
  const Status status = files_.read_exact(path, stored);
  if (status.code() == Code::kCorruption) return false;
  SGA_TRY(status);
  return hash128(stored) == hash;
}

Status ChunkWriter::start(const Hash128& hash, std::span<const std::byte> bytes) {
  const std::string directory = chunk_directory(dir_, hash);
  if (directories_.insert(directory).second) SGA_TRY(files_.make_directory(directory));
  const std::string path = chunk_path(dir_, hash);
  const std::string temporary = path + ".tmp-" + writer_;
  SGA_ASSIGN(std::unique_ptr<WritableFile> file, files_.create(temporary));
  pending_.push_back({std::move(file), temporary, path});
  return pending_.back().file->append(bytes);
}

Result<Hash128> ChunkWriter::add(std::span<const std::byte> bytes) {
  const Hash128 hash = hash128(bytes);
  if (!added_.insert(hash).second) {
    bytes_reused_ += std::ssize(bytes);
    return hash;
  }
  SGA_ASSIGN(const bool there, is_there(hash, bytes));
  if (there) {
    // Its directory is synced as well: whoever wrote it may have died before doing so.
    directories_.insert(chunk_directory(dir_, hash));
    bytes_reused_ += std::ssize(bytes);
    return hash;
  }
  Status status = start(hash, bytes);
  if (status.ok() && pending_.size() >= kMaxPendingFiles) status = flush();
  if (!status.ok()) {
    abandon();
    return status;
  }
  bytes_written_ += std::ssize(bytes);
  return hash;
}

Status ChunkWriter::flush() {
  for (const Pending& p : pending_) SGA_TRY(p.file->sync());
  for (const Pending& p : pending_) {
    SGA_TRY(p.file->close());
    SGA_TRY(files_.rename(p.temporary, p.path));
  }
  pending_.clear();
  return {};
}

void ChunkWriter::abandon() {
  for (Pending& p : pending_) {
    p.file.reset();
    // Best effort: those renamed already are gone, and prune removes what stays.
    static_cast<void>(files_.remove_file(p.temporary));
  }
  pending_.clear();
}

Status ChunkWriter::finish() {
  if (Status status = flush(); !status.ok()) {
    abandon();
    return status;
  }
  for (const std::string& directory : directories_) SGA_TRY(files_.sync_directory(directory));
  return files_.sync_directory(dir_);
}

Status remove_other_chunks(FileSystem& files, const std::string& dir,
                           const std::set<Hash128>& keep) {
  std::set<std::string> names;
  for (const Hash128& hash : keep) names.insert(hash.hex() + ".bin");
  SGA_ASSIGN(const std::vector<FileSystem::Entry> directories, files.list(dir));
  for (const FileSystem::Entry& directory : directories) {
    if (!directory.is_directory) continue;
    const std::string path = dir + "/" + directory.name;
    SGA_ASSIGN(const std::vector<FileSystem::Entry> entries, files.list(path));
    for (const FileSystem::Entry& entry : entries)
      if (!entry.is_directory && !names.contains(entry.name))
        SGA_TRY(files.remove_file(path + "/" + entry.name));
  }
  return {};
}

}  // namespace sgactor::transport

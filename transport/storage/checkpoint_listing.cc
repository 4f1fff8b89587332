#include "transport/storage/checkpoint.h"
#include "transport/storage/chunk_store.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

namespace sgactor::transport {
namespace {

/// Step of a directory named "step-00000010".
std::optional<int64_t> parse_step_name(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (digits.size() < 8 || error != std::errc() || end != digits.data() + digits.size() || step < 0)
    return std::nullopt;
  return step;
}

/// `root`, or `root`/ckpt if there is such a directory.
Result<std::string> find_root(const FileSystem& files, const std::string& root) {
  SGA_ASSIGN(const FileSystem::Info inner, files.info(root + "/ckpt"));
  if (inner.is_directory) return root + "/ckpt";
  SGA_ASSIGN(const FileSystem::Info outer, files.info(root));
  if (!outer.is_directory) return invalid_argument(root + ": no such directory");
  return root;
}

struct Listed {
  CheckpointListing listing;
  std::set<Hash128> chunks;
};

Result<std::vector<Listed>> list_with_chunks(const std::string& root,
                                             const std::shared_ptr<const FileSystem>& files) {
  SGA_ASSIGN(const std::vector<FileSystem::Entry> entries, files->list(root));
  std::vector<Listed> all;
  for (const FileSystem::Entry& entry : entries) {
    const std::optional<int64_t> step = parse_step_name(entry.name);
    if (!step || !entry.is_directory) continue;
    Listed listed{{root + "/" + entry.name, *step, {}, 0}, {}};
    Result<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::open(listed.listing.path, files);
    if (!checkpoint.ok()) {
      listed.listing.status = checkpoint.status();
    } else if (const CheckpointInfo& info = (*checkpoint)->info(); info.step != *step) {
      listed.listing.status = corruption(listed.listing.path + ": its manifest is of step " +
                                         std::to_string(info.step));
    } else {
      for (const TensorRecord& tensor : info.tensors) {
        listed.listing.bytes += tensor.type.bytes();
        listed.chunks.insert(tensor.chunks.begin(), tensor.chunks.end());
        for (const PieceRecord& piece : tensor.pieces)
          listed.chunks.insert(piece.chunks.begin(), piece.chunks.end());
      }
    }
    all.push_back(std::move(listed));
  }
  std::sort(all.begin(), all.end(),
            [](const Listed& a, const Listed& b) { return a.listing.step < b.listing.step; });
  return all;
}

/// COMMIT goes first, and durably: none may outlive a chunk that it vouches for.
Status remove_step(FileSystem& files, const std::string& step_dir) {
  SGA_ASSIGN(const FileSystem::Info commit, files.info(step_dir + "/COMMIT"));
  if (commit.exists) {
    SGA_TRY(files.remove_file(step_dir + "/COMMIT"));
    SGA_TRY(files.sync_directory(step_dir));
  }
  SGA_ASSIGN(const std::vector<FileSystem::Entry> entries, files.list(step_dir));
  for (const FileSystem::Entry& entry : entries)
    SGA_TRY(files.remove_file(step_dir + "/" + entry.name));
  return files.remove_directory(step_dir);
}

}  // namespace

Result<std::vector<CheckpointListing>> list_checkpoints(const std::string& root,
                                                        std::shared_ptr<const FileSystem> files) {
  if (!files) files = std::make_shared<PosixFileSystem>();
  SGA_ASSIGN(const std::string dir, find_root(*files, root));
  SGA_ASSIGN(std::vector<Listed> all, list_with_chunks(dir, files));
  std::vector<CheckpointListing> listings;
  listings.reserve(all.size());
  for (Listed& listed : all) listings.push_back(std::move(listed.listing));
  return listings;
}

Result<std::string> newest_checkpoint(const std::string& root,
                                      std::vector<CheckpointListing>* skipped, bool read_all,
                                      std::shared_ptr<const FileSystem> files) {
  if (!files) files = std::make_shared<PosixFileSystem>();
  SGA_ASSIGN(std::vector<CheckpointListing> all, list_checkpoints(root, files));
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    if (it->status.ok() && read_all) it->status = verify_checkpoint(it->path, files);
    if (it->status.ok()) return it->path;
    if (skipped != nullptr) skipped->push_back(*it);
  }
  return invalid_argument(root + ": holds no whole checkpoint");
}

Status prune_checkpoints(const std::string& root, int64_t keep, std::shared_ptr<FileSystem> files) {
  if (keep <= 0) return {};
  if (!files) files = std::make_shared<PosixFileSystem>();
  SGA_ASSIGN(const std::string dir, find_root(*files, root));
  SGA_ASSIGN(const std::vector<Listed> all, list_with_chunks(dir, files));
  std::set<Hash128> chunks;
  std::vector<std::string> removed;
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    const CheckpointListing& listing = it->listing;
    // A checkpoint that only cannot be read just now must not be taken for a broken one.
    if (!listing.status.ok() && listing.status.code() != Code::kCorruption) return listing.status;
    if (listing.status.ok() && keep > 0) {
      --keep;
      chunks.insert(it->chunks.begin(), it->chunks.end());
    } else {
      removed.push_back(listing.path);
    }
  }
  if (std::none_of(all.begin(), all.end(), [](const Listed& l) { return l.listing.status.ok(); }))
    return {};
  for (const std::string& step_dir : removed) SGA_TRY(remove_step(*files, step_dir));
  return remove_other_chunks(*files, dir + "/chunks", chunks);
}

}  // namespace sgactor::transport

#include "tests/unit/transport/checkpoint/memory_file_system.h"

#include <algorithm>
#include <cstring>
#include <random>

namespace sgactor::transport {

class MemoryFile : public WritableFile {
 public:
  MemoryFile(MemoryFileSystem& files, MemoryFileSystem::NodePtr node, std::string path)
      : files_(files), node_(std::move(node)), path_(std::move(path)) {}

  Status append(std::span<const std::byte> bytes) override {
    // A dying disk tears the write: some of it arrives.
    const Status status = files_.operate(path_, "write");
    const auto room =
        static_cast<size_t>(std::max<int64_t>(0, files_.capacity_ - files_.used_bytes()));
    size_t n = std::min(bytes.size(), room);
    if (!status.ok()) n = std::min(n, bytes.size() / 2);
    node_->bytes.append(reinterpret_cast<const char*>(bytes.data()), n);
    SGA_TRY(status);
    if (n < bytes.size()) return internal_error(path_ + ": write: No space left on device");
    return {};
  }
  Status sync() override {
    SGA_TRY(files_.operate(path_, "fsync"));
    node_->synced = node_->bytes.size();
    return {};
  }
  Status close() override { return {}; }

 private:
  MemoryFileSystem& files_;
  MemoryFileSystem::NodePtr node_;
  std::string path_;
};

MemoryFileSystem::MemoryFileSystem() {
  const auto root = std::make_shared<Node>(Node{true, "", 0});
  entries_["/"] = safe_entries_["/"] = root;
}

Status MemoryFileSystem::operate(const std::string& path, const char* operation) {
  if (operations_left_ == 0)
    return internal_error(path + ": " + operation + ": Input/output error");
  if (operations_left_ > 0) --operations_left_;
  ++num_operations_;
  return {};
}

void MemoryFileSystem::change(const std::string& directory, Change change) {
  for (const auto& [path, node] : change) {
    if (node) {
      entries_[path] = node;
    } else {
      entries_.erase(path);
    }
  }
  unsynced_[directory].push_back(std::move(change));
}

int64_t MemoryFileSystem::used_bytes() const {
  int64_t sum = 0;
  for (const auto& [path, node] : entries_) sum += std::ssize(node->bytes);
  return sum;
}

std::vector<std::string> MemoryFileSystem::files() const {
  std::vector<std::string> paths;
  for (const auto& [path, node] : entries_)
    if (!node->is_directory) paths.push_back(path);
  return paths;
}

void MemoryFileSystem::overwrite(const std::string& path, const std::string& bytes) {
  // A new node: a copy of this disk may share the old one.
  entries_[path] = std::make_shared<Node>(Node{false, bytes, bytes.size()});
}

std::shared_ptr<MemoryFileSystem> MemoryFileSystem::after_kill() const {
  auto copy = std::make_shared<MemoryFileSystem>(*this);
  // Nodes are shared between the seen and the safe entries, and must stay so.
  std::map<Node*, NodePtr> clones;
  const auto clone = [&](NodePtr& node) {
    if (!node) return;
    NodePtr& made = clones[node.get()];
    if (!made) made = std::make_shared<Node>(*node);
    node = made;
  };
  for (auto& [path, node] : copy->entries_) clone(node);
  for (auto& [path, node] : copy->safe_entries_) clone(node);
  for (auto& [directory, changes] : copy->unsynced_)
    for (Change& change : changes)
      for (auto& [path, node] : change) clone(node);
  copy->operations_left_ = -1;
  copy->capacity_ = int64_t{1} << 40;
  return copy;
}

std::shared_ptr<MemoryFileSystem> MemoryFileSystem::after_power_cut(uint64_t seed) const {
  std::mt19937_64 random(seed);
  auto copy = after_kill();
  for (const auto& [directory, changes] : copy->unsynced_)
    for (const Change& change : changes) {
      if (random() % 2 == 0) continue;  // this one did not reach the disk
      for (const auto& [path, node] : change) {
        if (node) {
          copy->safe_entries_[path] = node;
        } else {
          copy->safe_entries_.erase(path);
        }
      }
    }
  copy->unsynced_.clear();
  copy->entries_.clear();
  for (auto& [path, node] : copy->safe_entries_) {
    // What lies in a directory that was lost is lost too; parents sort before their entries.
    if (path != "/" && !copy->entries_.contains(parent_directory(path))) continue;
    copy->entries_[path] = node;
    if (node->bytes.size() > node->synced) {
      const size_t tail = node->bytes.size() - node->synced;
      node->bytes.resize(node->synced + random() % (tail + 1));
      if (node->bytes.size() > node->synced && random() % 2 == 0) node->bytes.back() ^= 1;
    }
    node->synced = node->bytes.size();
  }
  copy->safe_entries_ = copy->entries_;
  return copy;
}

Result<std::unique_ptr<WritableFile>> MemoryFileSystem::create(const std::string& path) {
  SGA_TRY(operate(path, "open for writing"));
  if (!entries_.contains(parent_directory(path)))
    return internal_error(path + ": open for writing: No such file or directory");
  const auto node = std::make_shared<Node>();
  change(parent_directory(path), {{path, node}});
  return std::unique_ptr<WritableFile>(std::make_unique<MemoryFile>(*this, node, path));
}

Result<std::unique_ptr<WritableFile>> MemoryFileSystem::open_append(const std::string& path) {
  const auto it = entries_.find(path);
  if (it == entries_.end()) return create(path);
  SGA_TRY(operate(path, "open for writing"));
  return std::unique_ptr<WritableFile>(std::make_unique<MemoryFile>(*this, it->second, path));
}

Status MemoryFileSystem::rename(const std::string& from, const std::string& to) {
  SGA_TRY(operate(to, "rename"));
  const auto it = entries_.find(from);
  if (it == entries_.end()) return internal_error(to + ": rename: No such file or directory");
  change(parent_directory(to), {{from, nullptr}, {to, it->second}});
  return {};
}

Status MemoryFileSystem::remove_file(const std::string& path) {
  SGA_TRY(operate(path, "remove"));
  const auto it = entries_.find(path);
  if (it == entries_.end() || it->second->is_directory)
    return internal_error(path + ": remove: No such file or directory");
  change(parent_directory(path), {{path, nullptr}});
  return {};
}

Status MemoryFileSystem::remove_directory(const std::string& path) {
  SGA_TRY(operate(path, "remove directory"));
  const auto next = entries_.upper_bound(path + "/");
  if (next != entries_.end() && next->first.starts_with(path + "/"))
    return internal_error(path + ": remove directory: Directory not empty");
  change(parent_directory(path), {{path, nullptr}});
  return {};
}

Status MemoryFileSystem::make_directory(const std::string& path) {
  SGA_TRY(operate(path, "make directory"));
  if (entries_.contains(path)) return {};
  if (!entries_.contains(parent_directory(path)))
    return internal_error(path + ": make directory: No such file or directory");
  change(parent_directory(path), {{path, std::make_shared<Node>(Node{true, "", 0})}});
  return {};
}

Status MemoryFileSystem::sync_directory(const std::string& path) {
  SGA_TRY(operate(path, "fsync directory"));
  for (const Change& change : unsynced_[path])
    for (const auto& [entry, node] : change) {
      if (node) {
        safe_entries_[entry] = node;
      } else {
        safe_entries_.erase(entry);
      }
    }
  unsynced_.erase(path);
  return {};
}

Result<std::vector<FileSystem::Entry>> MemoryFileSystem::list(const std::string& path) const {
  const auto directory = entries_.find(path);
  if (directory == entries_.end() || !directory->second->is_directory)
    return internal_error(path + ": list directory: No such file or directory");
  std::vector<Entry> found;
  const std::string prefix = path == "/" ? "/" : path + "/";
  for (auto it = entries_.upper_bound(prefix);
       it != entries_.end() && it->first.starts_with(prefix); ++it) {
    const std::string name = it->first.substr(prefix.size());
    if (name.find('/') == std::string::npos) found.push_back({name, it->second->is_directory});
  }
  return found;
}

Result<FileSystem::Info> MemoryFileSystem::info(const std::string& path) const {
  const auto it = entries_.find(path);
  if (it == entries_.end()) return Info{};
  return Info{true, it->second->is_directory, std::ssize(it->second->bytes)};
}

Result<std::string> MemoryFileSystem::read(const std::string& path, int64_t max_bytes) const {
  const auto it = entries_.find(path);
  if (it == entries_.end()) return invalid_argument(path + ": no such file");
  if (it->second->is_directory) return invalid_argument(path + ": is a directory");
  if (std::ssize(it->second->bytes) > max_bytes) return invalid_argument(path + ": longer");
  return it->second->bytes;
}

Status MemoryFileSystem::read_exact(const std::string& path, std::span<std::byte> out) const {
  const auto it = entries_.find(path);
  if (it == entries_.end()) return corruption(path + ": no such file");
  const std::string& bytes = it->second->bytes;
  if (bytes.size() != out.size()) return corruption(path + ": has another size");
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return {};
}

}  // namespace sgactor::transport

#include "kernels/cuda/matmul_table.h"

#include "graph/base/hash.h"

#include <charconv>
#include <fstream>

namespace sgactor::kernels::cuda {

Status MatmulTable::open(const std::string& file) {
  const std::lock_guard lock(mutex_);
  file_ = file;
  std::ifstream in(file);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const size_t first = line.find('|');
    const size_t second = line.find('|', first + 1);
    int place = -1;
    if (first != std::string::npos && second != std::string::npos) {
      const char* end = line.data() + line.size();
      if (std::from_chars(line.data() + second + 1, end, place).ptr != end) place = -1;
    }
    if (place < 0) {
      return invalid_argument(file + ":" + std::to_string(number) +
                              ": expected machine|product|place");
    }
    if (line.substr(0, first) == machine_)
      rows_[line.substr(first + 1, second - first - 1)] = place;
  }
  return {};
}

std::optional<int> MatmulTable::find(const std::string& product) const {
  const std::lock_guard lock(mutex_);
  const auto row = rows_.find(product);
  if (row == rows_.end()) return std::nullopt;
  return row->second;
}

Status MatmulTable::add(const std::string& product, int place) {
  const std::lock_guard lock(mutex_);
  rows_[product] = place;
  std::ofstream out(file_, std::ios::app);
  out << machine_ << '|' << product << '|' << place << '\n';
  out.flush();
  if (!out.good()) return invalid_argument("cannot write " + file_);
  return {};
}

std::string MatmulTable::fingerprint() const {
  const std::lock_guard lock(mutex_);
  if (rows_.empty()) return "default";
  std::string text;
  for (const auto& [product, place] : rows_) text += product + "|" + std::to_string(place) + "\n";
  return hex64(hash64(text));
}

}  // namespace sgactor::kernels::cuda

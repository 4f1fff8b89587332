#pragma once
#include "graph/compiler/pipeline.h"

#include <string>
#include <string_view>

namespace sgactor::graph {

/// What the compile cache keeps of one compilation.
struct CacheEntry {
  Compiled compiled;        ///< without Plan::compile_ms, which is set by whoever loads it
  std::string graph_bytes;  ///< serialized training graph that schema_hash names; may be empty
};

/// An entry as bytes, for a file: the key in full, the contents and a checksum over both. `key`
/// says everything that the result depends on: model, options, backend, device, program.
std::string encode_cache_entry(std::string_view key, const CacheEntry& entry);
/// Safe on hostile bytes; the plan is verified. Errors: kCorruption if the bytes are damaged, cut
/// or of another format; kInvalidArgument if they are whole and of another key; kInvalidPlan.
Result<CacheEntry> decode_cache_entry(std::string_view bytes, std::string_view key);

/// Name of the key's file: equal keys have equal names, others differ but for collisions of a
/// 128-bit hash, which decode_cache_entry finds.
std::string cache_file_name(std::string_view key);

}  // namespace sgactor::graph

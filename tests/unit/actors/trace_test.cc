#include "actors/runtime/trace.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include <filesystem>

namespace sgactor::actors {
namespace {

TEST(Tracer, RecordsOnlyWhileOn) {
  Tracer tracer;
  const int32_t track = tracer.add_track("pool");
  tracer.slice(track, "early", 1, 2, 0, 0);
  EXPECT_EQ(tracer.num_events(), 0U);
  tracer.enable(true);
  tracer.slice(track, "a \"quoted\" name", 1000, 3000, 7, 2);
  tracer.flow_start(track, 0xabc, 1500);
  tracer.flow_finish(track, 0xabc, 2500);
  tracer.enable(false);
  tracer.slice(track, "late", 1, 2, 0, 0);
  EXPECT_EQ(tracer.num_events(), 3U);
  const auto json = nlohmann::json::parse(tracer.to_json(4));
  int slices = 0;
  std::string start_id, finish_id;
  for (const auto& e : json["traceEvents"]) {
    if (e["ph"] == "X") {
      ++slices;
      EXPECT_EQ(e["name"], "a \"quoted\" name");
      EXPECT_EQ(e["pid"], 4);
      EXPECT_DOUBLE_EQ(e["ts"], 0.0);
      EXPECT_DOUBLE_EQ(e["dur"], 2.0);
      EXPECT_EQ(e["args"]["step"], 7);
    }
    if (e["ph"] == "s") start_id = e["id"];
    if (e["ph"] == "f") finish_id = e["id"];
  }
  EXPECT_EQ(slices, 1);
  EXPECT_EQ(start_id, "abc");
  EXPECT_EQ(start_id, finish_id);
}

TEST(Tracer, WritesGzip) {
  const std::string path = testing::TempDir() + "/sga_trace_test.json.gz";
  Tracer tracer;
  tracer.add_track("lane", true);
  ASSERT_TRUE(tracer.write(path, 0).ok());
  gzFile file = gzopen(path.c_str(), "rb");
  ASSERT_NE(file, nullptr);
  std::string text(4096, '\0');
  const int n = gzread(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  ASSERT_GT(n, 0);
  EXPECT_EQ(text.substr(0, static_cast<size_t>(n)), tracer.to_json(0));
  std::filesystem::remove(path);
  EXPECT_FALSE(tracer.write(testing::TempDir() + "/no/such/folder/t.gz", 0).ok());
}

}  // namespace
}  // namespace sgactor::actors

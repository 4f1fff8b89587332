#include "kernels/backend/backend.h"

#include <gtest/gtest.h>

namespace sgactor::kernels {
namespace {

Result<std::unique_ptr<Backend>> refuse(const BackendOptions& options) {
  return make_status(Code::kOutOfMemory, "asked for " + std::to_string(options.num_threads));
}

BackendTable table_of_two() {
  BackendTable table;
  table.add({"here", refuse, ""});
  table.add({"gone", {}, "libgone.so: cannot open shared object file"});
  return table;
}

TEST(BackendTable, CreateCallsTheRowWithTheOptions) {
  const Status status = table_of_two().create("here", {.num_threads = 3}).status();
  EXPECT_EQ(status.code(), Code::kOutOfMemory);
  EXPECT_EQ(status.message(), "asked for 3");
}

TEST(BackendTable, AnUnknownNameListsTheKnown) {
  const Status status = table_of_two().create("hear", {}).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("'hear'"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("here, gone"), std::string::npos) << status.message();
}

TEST(BackendTable, AnUnavailableBackendSaysWhy) {
  const Status status = table_of_two().create("gone", {}).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("libgone.so"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace sgactor::kernels

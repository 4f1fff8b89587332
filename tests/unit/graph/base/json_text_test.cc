#include "graph/base/json_text.h"

#include <gtest/gtest.h>

namespace sgactor {
namespace {

TEST(JsonTextTest, EscapesWhatAStringMayNotHold) {
  EXPECT_EQ(json_text("layer.3.forward"), "layer.3.forward");
  EXPECT_EQ(json_text("a\"b\\c"), "a\\\"b\\\\c");
  EXPECT_EQ(json_text(std::string_view("\n\t\0\x1f", 4)), "\\u000a\\u0009\\u0000\\u001f");
  EXPECT_EQ(json_text("\xc3\xa9"), "\xc3\xa9");
}

}  // namespace
}  // namespace sgactor

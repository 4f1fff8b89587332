#include "graph/base/log.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

namespace sgactor::log {
namespace {

TEST(LogTest, CountsWarningsAndErrors) {
  init({Level::kOff, ""});
  reset_warnings();
  info("step {}", 1);
  debug("step {}", 1);
  EXPECT_EQ(num_warnings(), 0);
  warn("device {} is slow", 3);
  error("device {} is gone", 3);
  EXPECT_EQ(num_warnings(), 2);
  reset_warnings();
  EXPECT_EQ(num_warnings(), 0);
  init({});
}

TEST(LogTest, WritesToFileAboveLevel) {
  const std::string path = testing::TempDir() + "sgactor_log_test.txt";
  std::remove(path.c_str());
  init({Level::kWarn, path});
  info("not seen");
  warn("rank {} left", 5);
  init({});
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_NE(text.str().find("rank 5 left"), std::string::npos);
  EXPECT_EQ(text.str().find("not seen"), std::string::npos);
  std::remove(path.c_str());
  reset_warnings();  // the warning above is meant
}

}  // namespace
}  // namespace sgactor::log

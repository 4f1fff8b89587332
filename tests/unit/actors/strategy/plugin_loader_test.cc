#include "actors/strategy/plugin_loader.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace sgactor::actors {
namespace {

/// The module that is wrong in this way, beside the test program.
std::string plugin(const std::string& name) {
  return fmt::format("{}/sga_test_plugin_{}.so", SGA_TEST_PLUGIN_DIR, name);
}

class PluginLoader : public testing::Test {
 protected:
  void SetUp() override { add_builtin_strategies(table_); }

  /// One line that names the file and holds `part`; the table stays as it was.
  void expect_refused(const std::string& path, const std::string& part) {
    const size_t before = table_.entries().size();
    const Status s = load_plugin(path, table_);
    EXPECT_EQ(s.code(), Code::kInvalidArgument) << path;
    EXPECT_EQ(s.message().rfind("plug-in " + path + ": ", 0), 0U) << s.message();
    EXPECT_NE(s.message().find(part), std::string::npos) << s.message();
    EXPECT_EQ(std::count(s.message().begin(), s.message().end(), '\n'), 0) << s.message();
    EXPECT_EQ(table_.entries().size(), before);
  }

  StrategyTable table_;
};

TEST_F(PluginLoader, AddsStrategies) {
  ASSERT_EQ(load_plugin(plugin("good"), table_).to_string(), Status().to_string());
  ASSERT_NE(find_strategy(table_, "test-sum"), nullptr);
  EXPECT_NE(find_strategy(table_, "mesh"), nullptr);
  EXPECT_EQ(find_strategy(table_, "test"), nullptr);
}

TEST_F(PluginLoader, RefusesTheSamePluginTwice) {
  ASSERT_TRUE(load_plugin(plugin("good"), table_).ok());
  expect_refused(plugin("good"), "adds strategy \"test-sum\", which is there already");
}

TEST_F(PluginLoader, RefusesWhatIsNoPlugin) {
  namespace fs = std::filesystem;
  const fs::path dir = fs::path(testing::TempDir()) / "sga_plugins";
  fs::create_directories(dir);
  std::ofstream(dir / "text.so") << "no library\n";
  expect_refused((dir / "none.so").string(), "no such file");
  expect_refused(dir.string(), "this is no regular file");
  expect_refused((dir / "text.so").string(), "cannot be loaded");
  expect_refused(plugin("no_symbols"), "it lacks sgactor_strategy_abi");
  fs::remove_all(dir);
}

TEST_F(PluginLoader, RefusesAnotherVersion) {
  expect_refused(plugin("other_version"),
                 "was built for \"strategy SDK 0, gcc 4\", this program is \"strategy SDK ");
}

TEST_F(PluginLoader, RefusesOneThatThrows) {
  expect_refused(plugin("throws"), "threw: no luck today");
  EXPECT_EQ(find_strategy(table_, "never"), nullptr);
}

TEST_F(PluginLoader, RefusesRowsThatAreWrong) {
  expect_refused(plugin("empty"), "adds no strategy");
  expect_refused(plugin("nameless"), "adds a strategy without a name");
  expect_refused(plugin("taken"), "adds strategy \"mesh\", which is there already");
}

}  // namespace
}  // namespace sgactor::actors

// main() of every test program. A test that logs a warning or error fails unless it calls
// log::reset_warnings() to say that it meant it.
#include "graph/base/log.h"

#include <gtest/gtest.h>

namespace {

class WarningListener : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { sgactor::log::reset_warnings(); }
  void OnTestEnd(const testing::TestInfo& info) override {
    if (sgactor::log::num_warnings() > 0) {
      ADD_FAILURE() << info.name() << " logged " << sgactor::log::num_warnings()
                    << " warnings or errors";
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new WarningListener);
  sgactor::log::init({});
  return RUN_ALL_TESTS();
}

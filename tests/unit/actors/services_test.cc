#include "actors/runtime/services.h"

#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

namespace sgactor::actors {
namespace {

TEST(Services, ThreadServiceRunsJobsInOrderElsewhere) {
  std::vector<int> order;
  std::thread::id where;
  {
    const auto service = create_thread_service("test");
    for (int i = 0; i < 10; ++i) {
      service->submit(
          [&order, &where, i]() -> Status {
            order.push_back(i);
            where = std::this_thread::get_id();
            return {};
          },
          [](const Status& s) { EXPECT_TRUE(s.ok()); });
    }
  }  // finishes what was submitted
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_NE(where, std::this_thread::get_id());
}

TEST(Services, AnExceptionBecomesAStatus) {
  for (const bool threaded : {true, false}) {
    const auto service = threaded ? create_thread_service("test") : create_inline_service();
    std::promise<Status> promise;
    service->submit([]() -> Status { throw std::runtime_error("out of paper"); },
                    [&promise](const Status& s) { promise.set_value(s); });
    const Status status = promise.get_future().get();
    EXPECT_EQ(status.code(), Code::kInternal);
    EXPECT_NE(status.message().find("out of paper"), std::string::npos);
  }
}

TEST(Services, InlineServiceIsDoneOnReturn) {
  const auto service = create_inline_service();
  Status seen;
  service->submit([] { return invalid_argument("no"); }, [&](const Status& s) { seen = s; });
  EXPECT_EQ(seen.code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace sgactor::actors

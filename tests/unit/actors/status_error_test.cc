#include "actors/protocol/status_error.h"

#include <caf/exit_reason.hpp>
#include <caf/sec.hpp>
#include <gtest/gtest.h>

namespace sgactor::actors {
namespace {

TEST(StatusError, AStatusComesBackWhole) {
  const Status status(Code::kDeviceFault, Scope::kRank, "xid 79", {3, "layer.0", 17, 2, "f.cc:1"});
  const caf::error error = to_caf(status);
  EXPECT_EQ(error.category(), caf::atom("sga"));
  EXPECT_EQ(error.code(), static_cast<uint8_t>(Code::kDeviceFault));
  const Status back = from_caf(error);
  EXPECT_EQ(back.to_string(), status.to_string());
  EXPECT_EQ(back.scope(), Scope::kRank);
  EXPECT_EQ(back.origin(), status.origin());
}

TEST(StatusError, OkAndOrderlyEndsAreOk) {
  EXPECT_FALSE(to_caf(Status()));
  EXPECT_TRUE(from_caf(caf::none).ok());
  EXPECT_TRUE(from_caf(caf::exit_reason::user_shutdown).ok());
}

TEST(StatusError, OtherErrorsAreInternal) {
  for (const caf::error& e :
       {caf::error(caf::exit_reason::kill), caf::error(caf::sec::unexpected_message)}) {
    const Status status = from_caf(e);
    EXPECT_EQ(status.code(), Code::kInternal);
    EXPECT_FALSE(status.message().empty());
  }
}

}  // namespace
}  // namespace sgactor::actors

#include "graph/base/units.h"

#include <gtest/gtest.h>

namespace sgactor {
namespace {

TEST(UnitsTest, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(3 * kMiB), "3.00 MiB");
  EXPECT_EQ(format_bytes(kGiB + kGiB / 2), "1.50 GiB");
}

TEST(UnitsTest, Counts) {
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(0.5), "0.50");
  EXPECT_EQ(format_count(3.02e6), "3.02 M");
  EXPECT_EQ(format_count(70.55e9), "70.55 B");
  EXPECT_EQ(format_count(999999), "1.00 M");
}

TEST(UnitsTest, Seconds) {
  EXPECT_EQ(format_seconds(25e-6), "25.0 us");
  EXPECT_EQ(format_seconds(0.0041), "4.1 ms");
  EXPECT_EQ(format_seconds(12.3), "12.3 s");
  EXPECT_EQ(format_seconds(185), "3m 05s");
  EXPECT_EQ(format_seconds(3725), "1h 02m");
}

TEST(UnitsTest, Rounding) {
  EXPECT_EQ(round_up(0, 256), 0);
  EXPECT_EQ(round_up(1, 256), 256);
  EXPECT_EQ(round_up(256, 256), 256);
  EXPECT_EQ(ceil_div(7, 2), 4);
  EXPECT_EQ(ceil_div(8, 2), 4);
}

TEST(UnitsTest, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("step", "setp"), 1);
  EXPECT_EQ(edit_distance("model", "model"), 0);
}

}  // namespace
}  // namespace sgactor

#include "transport/storage/file_system.h"

#include "tests/unit/transport/checkpoint/memory_file_system.h"
#include "tests/unit/transport/safetensors/temporary_directory.h"
#include "transport/storage/run_files.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace sgactor::transport {
namespace {

constexpr int64_t kMax = 1 << 20;

TEST(RunFiles, WritesReadsAndAppends) {
  const TemporaryDirectory dir;
  const std::string deep = dir.file("a/b/c");
  ASSERT_TRUE(make_dirs(deep).ok());
  ASSERT_TRUE(make_dirs(deep).ok());
  const std::string path = deep + "/x.json";
  ASSERT_TRUE(write_file_atomic(path, "first").ok());
  ASSERT_TRUE(write_file_atomic(path, "second\n").ok());
  EXPECT_EQ(*read_file(path, kMax), "second\n");
  ASSERT_TRUE(append_line(path, "third").ok());
  ASSERT_TRUE(append_line(path, "fourth", true).ok());
  ASSERT_TRUE(append_line(deep + "/new", "line", true).ok());
  EXPECT_EQ(*read_file(path, kMax), "second\nthird\nfourth\n");
  EXPECT_EQ(*read_file(deep + "/new", kMax), "line\n");
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST(RunFiles, ErrorsNameTheFile) {
  const TemporaryDirectory dir;
  const std::string none = dir.file("none");
  EXPECT_EQ(read_file(none, kMax).status().message(), none + ": no such file");
  EXPECT_EQ(read_file(dir.path(), kMax).status().message(), dir.path() + ": is a directory");
  const std::string path = dir.write("five", "12345");
  EXPECT_EQ(*read_file(path, 5), "12345");
  EXPECT_EQ(read_file(path, 4).status().message(), path + ": longer than 4 bytes");
  EXPECT_EQ(write_file_atomic(none + "/x", "y").message(),
            none + "/x.tmp: open for writing: No such file or directory");
  EXPECT_EQ(make_dirs(path + "/x").message(), path + ": make directory: File exists");
  EXPECT_EQ(make_dirs(path).message(), path + ": make directory: File exists");
  EXPECT_EQ(append_line(dir.path(), "x").code(), Code::kInternal);
}

TEST(RunFiles, ReadsFilesThatDoNotTellTheirSize) {
  const auto text = read_file("/proc/self/status", kMax);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  EXPECT_NE(text->find("VmRSS"), std::string::npos);
}

TEST(FileSystem, PathsSplit) {
  EXPECT_EQ(parent_directory("a/b"), "a");
  EXPECT_EQ(parent_directory("a/b/"), "a");
  EXPECT_EQ(parent_directory("b"), ".");
  EXPECT_EQ(parent_directory("/b"), "/");
  EXPECT_EQ(parent_directory("/"), "/");
  EXPECT_EQ(parent_directory("."), "..");
  EXPECT_EQ(parent_directory("a/.."), "..");
  EXPECT_EQ(parent_directory("../"), "../..");
  EXPECT_EQ(parent_directory("./a//b//"), "a");
  EXPECT_EQ(base_name("a/b/"), "b");
  EXPECT_EQ(base_name("/a"), "a");
}

TEST(FileSystem, ReadExactComparesSizes) {
  const TemporaryDirectory dir;
  const PosixFileSystem files;
  const std::string path = dir.write("f", "abc");
  std::vector<std::byte> out(3);
  EXPECT_TRUE(files.read_exact(path, out).ok());
  EXPECT_EQ(out[2], std::byte{'c'});
  out.resize(4);
  EXPECT_EQ(files.read_exact(path, out).code(), Code::kCorruption);
  EXPECT_EQ(files.read_exact(path, out).message(), path + ": has 3 bytes, 4 expected");
  EXPECT_EQ(files.read_exact(path + "x", out).code(), Code::kCorruption);
}

TEST(FileSystem, ListIsSorted) {
  const TemporaryDirectory dir;
  for (const char* name : {"b", "a", "c"}) dir.write(name, "");
  std::filesystem::create_directory(dir.file("d"));
  const auto entries = PosixFileSystem().list(dir.path());
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries->size(), 4U);
  EXPECT_EQ((*entries)[0].name, "a");
  EXPECT_FALSE((*entries)[2].is_directory);
  EXPECT_TRUE((*entries)[3].is_directory);
  EXPECT_EQ(PosixFileSystem().list(dir.file("none")).status().code(), Code::kInternal);
}

TEST(FileSystem, ReplaceFileLeavesTheOldOrTheNew) {
  auto start = std::make_shared<MemoryFileSystem>();
  ASSERT_TRUE(replace_file(*start, "/f", "old").ok());
  bool done = false;
  for (int64_t n = 0; !done; ++n) {
    const auto files = start->after_kill();
    files->die_after(n);
    done = replace_file(*files, "/f", "newer").ok();
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::string found = *files->after_power_cut(seed)->read("/f", kMax);
      EXPECT_TRUE(found == "newer" || (!done && found == "old")) << n << " " << found;
    }
  }
}

// The test's own disk: what is not synced does get lost, or the crash tests would prove nothing.
TEST(FileSystem, TheMemoryDiskLosesWhatWasNotSynced) {
  MemoryFileSystem files;
  const auto file = files.create("/f");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->append(std::as_bytes(std::span("12345", 5))).ok());
  bool lost_entry = false;
  for (uint64_t seed = 0; seed < 20; ++seed)
    lost_entry |= !files.after_power_cut(seed)->read("/f", kMax).ok();
  EXPECT_TRUE(lost_entry);
  ASSERT_TRUE(files.sync_directory("/").ok());
  bool torn = false;
  for (uint64_t seed = 0; seed < 20; ++seed)
    torn |= *files.after_power_cut(seed)->read("/f", kMax) != "12345";
  EXPECT_TRUE(torn);
  ASSERT_TRUE((*file)->sync().ok());
  for (uint64_t seed = 0; seed < 20; ++seed)
    EXPECT_EQ(*files.after_power_cut(seed)->read("/f", kMax), "12345");
}

}  // namespace
}  // namespace sgactor::transport

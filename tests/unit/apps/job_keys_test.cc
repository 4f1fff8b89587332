#include "apps/sgactor/job_keys.h"

#include <gtest/gtest.h>

#include <set>

namespace sgactor::apps {
namespace {

TEST(JobKeys, TableIsConsistent) {
  std::set<std::string> names;
  for (const JobKey& key : job_keys()) {
    EXPECT_TRUE(names.insert(key.full_name()).second) << key.full_name() << " is there twice";
    EXPECT_FALSE(key.help.empty()) << key.full_name();
    bool known = false;
    for (const JobSection& section : job_sections()) known |= section.name == key.section;
    EXPECT_TRUE(known) << key.full_name() << " is in no section";
    JobSpec defaults;
    EXPECT_TRUE(check_limits(key, defaults).ok())
        << key.full_name() << ": its default breaks its own limits";
  }
}

TEST(JobKeys, FieldsAreDistinct) {
  JobSpec job;
  std::set<const void*> fields;
  for (const JobKey& key : job_keys()) {
    const void* field =
        std::visit([](auto* p) { return static_cast<const void*>(p); }, key.field(job));
    EXPECT_TRUE(fields.insert(field).second) << key.full_name() << " shares a field";
  }
}

TEST(JobKeys, HintPrefersTheSameSection) {
  EXPECT_EQ(nearest_key_hint("training.sed"), "; did you mean training.seed?");
  EXPECT_EQ(nearest_key_hint("checkpoint.intervall"), "; did you mean checkpoint.interval?");
  EXPECT_EQ(nearest_key_hint("log.intervall"), "; did you mean log.interval?");
  EXPECT_EQ(nearest_key_hint("training.xyzzy_plugh"), "");
}

TEST(JobKeys, HintKnowsNamesOfOtherTrainers) {
  EXPECT_EQ(nearest_key_hint("optimizer.learning_rate"), "; did you mean optimizer.lr?");
  EXPECT_EQ(nearest_key_hint("training.seq_length"), "; did you mean training.seq_len?");
  EXPECT_EQ(nearest_key_hint("training.tensor_model_parallel_size"),
            "; did you mean parallelism.tensor_parallel_degree?");
  EXPECT_EQ(nearest_key_hint("bfloat16"), "; did you mean training.dtype = \"bf16\"?");
  EXPECT_EQ(nearest_key_hint("parallelism.dp"), "; did you mean parallelism.data_parallel_degree?");
  EXPECT_EQ(nearest_key_hint("zero"), "; did you mean parallelism.zero_stage?");
  EXPECT_NE(nearest_key_hint("batch_size").find("training.global_batch_size"), std::string::npos);
}

TEST(JobKeys, HintGuessesNothingOfTwoLetters) {
  EXPECT_EQ(nearest_key_hint("training.x"), "");
  EXPECT_EQ(nearest_key_hint("ab"), "");
  EXPECT_EQ(nearest_key_hint("hff"), "; did you mean model.hf?");
}

TEST(JobKeys, Expectations) {
  EXPECT_EQ(expectation(*find_job_key("training.seq_len")), "an integer from 1 to 1048576");
  EXPECT_EQ(expectation(*find_job_key("optimizer.beta1")), "a number from 0 to below 1");
  EXPECT_EQ(expectation(*find_job_key("optimizer.lr")), "a number above 0");
  EXPECT_EQ(expectation(*find_job_key("model.preset")), "a string");
  EXPECT_EQ(expectation(*find_job_key("training.micro_batch_size")),
            "an integer from 1 to 4096, or \"auto\"");
  EXPECT_EQ(find_job_key("training"), nullptr);
}

}  // namespace
}  // namespace sgactor::apps

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/model/gguf.hpp"
#include "experiments/cli/account.hpp"

namespace switchyard {
namespace {

AccountOptions options(const std::string& model) {
  AccountOptions o;
  o.model = model;
  o.root = SWITCHYARD_SOURCE_DIR;
  return o;
}

/// The cell in `column` of the row that begins with `row`; "" when there is none.
std::string cell(const Table& t, const std::string& row, std::size_t column) {
  for (const auto& r : t.rows) {
    if (r[0] == row) {
      return r.at(column);
    }
  }
  return {};
}

TEST(Account, MixtralAsPublished) {
  const auto tables = account(options("mixtral_8x7b"));
  ASSERT_EQ(tables.size(), 3U);
  EXPECT_EQ(cell(tables[0], "total", 1), "46702792704");
  EXPECT_EQ(cell(tables[0], "total", 2), "12879925248");
  EXPECT_EQ(cell(tables[0], "total", 4), "93405585408");
  EXPECT_EQ(cell(tables[0], "dense FFN", 1), "");
  EXPECT_EQ(cell(tables[1], "KV cache per token", 1), "131072");
  EXPECT_EQ(cell(tables[1], "one expert, one layer", 1), "352321536");
  EXPECT_EQ(cell(tables[2], "expert_fraction", 2), "25.0000");
  EXPECT_EQ(cell(tables[2], "slot_occupancy", 2), "n/a");
  EXPECT_EQ(tables[2].rows.size(), 8U);
  for (const auto& t : tables) {
    for (const auto format : {TableFormat::kText, TableFormat::kMarkdown, TableFormat::kCsv,
                              TableFormat::kLatex, TableFormat::kJson}) {
      EXPECT_FALSE(render(t, format).empty());
    }
  }
}

TEST(Account, PartsSumToTheTotal) {
  for (const char* name : {"deepseek_v3", "gpt_oss_120b", "gpt4_s2", "gpt4_s1", "qwen2_57b_a14b"}) {
    SCOPED_TRACE(name);
    const auto t = account(options(name)).front();
    unsigned long long parameters = 0;
    unsigned long long bytes = 0;
    for (const auto& r : t.rows) {
      if (r[0].rfind("total", 0) != 0) {
        parameters += std::stoull(r[1]);
        bytes += std::stoull(r[4]);
      }
    }
    EXPECT_EQ(std::to_string(parameters), cell(t, "total", 1));
    EXPECT_EQ(std::to_string(bytes), cell(t, "total", 4));
  }
}

TEST(Account, TheArticlesTotalIsASecondColumn) {
  const auto t = account(options("gpt4-s4")).at(2);
  EXPECT_EQ(cell(t, "param_narrow", 2), "12.1350");
  EXPECT_EQ(cell(t, "param_narrow", 3), "13.9586");
  EXPECT_EQ(cell(t, "layer_fraction", 3), "0.1454");
  EXPECT_EQ(cell(t, "expert_fraction", 3), "n/a");
}

TEST(Account, TokensAndContextMatter) {
  auto o = options("mixtral_8x7b");
  o.tokens = 4;
  o.context = 4096;
  const auto tables = account(o);
  EXPECT_EQ(cell(tables[1], "KV cache of a sequence of 4096 tokens", 1), "536870912");
  // E(1 - (1 - k/E)^4) = 5.46875 of 8.
  EXPECT_EQ(cell(tables[2], "touched_fraction", 2), "68.3594");
  o.tokens = 0;
  EXPECT_THROW(account(o), InputError);
}

TEST(Account, DtypeChoice) {
  const auto all = parse_dtype_choice("fp8", {});
  EXPECT_EQ(all.experts, model::DType::kF8E4M3);
  EXPECT_EQ(all.router, model::DType::kF8E4M3);
  EXPECT_EQ(all.kv, model::DType::kBf16);
  const auto some = parse_dtype_choice("experts=int4,kv=fp8", {});
  EXPECT_EQ(some.experts, model::DType::kInt4);
  EXPECT_EQ(some.shared, model::DType::kBf16);
  EXPECT_EQ(some.kv, model::DType::kF8E4M3);
  const auto error = [](const std::string& text) {
    try {
      parse_dtype_choice(text, {});
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(error("expert=int4"), "--dtype: unknown part \"expert\"; did you mean \"experts\"?");
  EXPECT_EQ(error("experts=int4,"),
            "--dtype: \"\" is not part=format; e.g. experts=int4,router=fp32");
  EXPECT_NE(error("bf61"), "accepted");
  auto o = options("qwen2_57b_a14b");
  o.dtype = "experts=int4_g128,shared=bf16";
  EXPECT_EQ(cell(account(o).front(), "routed experts", 3), "int4_g128");
}

TEST(Account, AGgufFileShowsTheFormatsOfItsTensors) {
  AccountOptions o =
      options(std::string(SWITCHYARD_SOURCE_DIR) + "/tests/fuzz/corpus/gguf/deepseek_q4_0.gguf");
  const auto stored = account(o).front();
  const auto file = model::Gguf::open(o.model);
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : file.tensors()) bytes += tensor.data.size();
  EXPECT_EQ(cell(stored, "total", 4), std::to_string(bytes));
  EXPECT_EQ(cell(stored, "routed experts", 3), "q4_0");
  EXPECT_EQ(cell(stored, "norms", 3), "fp32");
  EXPECT_EQ(cell(stored, "other tensors", 3), "") << "every tensor belongs to a part";
  // Another choice counts the parts in one format each.
  o.dtype = "bf16";
  EXPECT_EQ(cell(account(o).front(), "norms", 3), "bf16");
}

TEST(Account, SaysHowTheRouterIsCountedAndWhatTheFileLeftOut) {
  const auto notes_of = [](const std::string& model) {
    const Table table = account(options(model)).front();
    std::string all;
    for (const std::string& n : table.notes) all += n + "\n";
    return all;
  };
  EXPECT_NE(notes_of("mixtral_8x7b").find("its logits are computed in fp32"), std::string::npos);
  const std::string path = testing::TempDir() + "/account_defaults.json";
  write_file(path, R"({"model_type": "mixtral", "hidden_size": 64, "num_attention_heads": 8})");
  const std::string notes = notes_of(path);
  EXPECT_NE(notes.find("class defaults used for: "), std::string::npos) << notes;
  EXPECT_NE(notes.find("num_key_value_heads"), std::string::npos) << notes;
  EXPECT_NE(notes.find("torch_dtype is not stated: what has no format of its own counts as bf16"),
            std::string::npos)
      << notes;
}

TEST(Account, AWidthThatIsNotThereNamesTheNearestOne) {
  const auto hint = [](const char* text) {
    try {
      (void)parse_dtype_choice(text, {});
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(hint("int3").find("did you mean \"int4\"?"), std::string::npos) << hint("int3");
  EXPECT_NE(hint("experts=int6").find("did you mean \"int8\"?"), std::string::npos);
  EXPECT_NE(hint("fp6").find("did you mean \"fp8\"?"), std::string::npos);
  EXPECT_NE(hint("mxfp5").find("did you mean \"mxfp4\"?"), std::string::npos);
  EXPECT_NE(hint("bf17").find("did you mean \"bf16\"?"), std::string::npos);
  EXPECT_NE(hint("itn4").find("did you mean \"int4\"?"), std::string::npos);
}

TEST(Account, UnknownModelNamesTheNearest) {
  EXPECT_THROW(account(options("mixtral_8x8b")), InputError);
}

}  // namespace
}  // namespace switchyard

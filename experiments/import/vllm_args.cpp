// SPDX-License-Identifier: Apache-2.0
#include "experiments/import/vllm_args.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>

#include "engine/base/error.hpp"

namespace switchyard::importers {
namespace {

struct Word {
  std::string text;
  std::size_t line = 1;
};

/// Words of a shell line: blanks part them, quotes and backslashes join, # begins a comment.
std::vector<Word> shell_words(std::string_view text, const std::string& where) {
  std::vector<Word> words;
  std::size_t line = 1;
  bool open = false;
  char quote = 0;
  std::size_t quoted_at = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else if (c == '\\' && quote == '"' && i + 1 < text.size()) {
        words.back().text += text[++i];
      } else {
        words.back().text += c;
      }
      continue;
    }
    if (c == '\\' && i + 1 < text.size()) {
      if (text[i + 1] == '\r' || text[i + 1] == '\n') {
        i += text[i + 1] == '\r' && i + 2 < text.size() && text[i + 2] == '\n' ? 2 : 1;
        ++line;
        open = false;
        continue;
      }
      if (!open) words.push_back({"", line});
      open = true;
      words.back().text += text[++i];
      continue;
    }
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
      open = false;
      continue;
    }
    if (c == '#' && !open) {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
      continue;
    }
    if (!open) words.push_back({"", line});
    open = true;
    if (c == '"' || c == '\'') {
      quote = c;
      quoted_at = line;
    } else {
      words.back().text += c;
    }
  }
  if (quote != 0) throw InputError(fmt::format("{}:{}", where, quoted_at), "a quote is not closed");
  return words;
}

struct Flag {
  std::string name, value;
  bool has_value = false;
  std::size_t line = 1;
};

struct Command {
  std::string model;
  std::size_t line = 1;
  std::vector<Flag> flags;
};

std::string long_name(const std::string& flag) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kShort{
      {{"-tp", "--tensor-parallel-size"},
       {"-pp", "--pipeline-parallel-size"},
       {"-dp", "--data-parallel-size"},
       {"-ep", "--enable-expert-parallel"},
       {"-q", "--quantization"}}};
  for (const auto& [from, to] : kShort) {
    if (flag == from) return std::string(to);
  }
  std::string out = flag;
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

Command parse(std::string_view text, const std::string& where) {
  const std::vector<Word> words = shell_words(text, where);
  std::size_t at = 0;
  bool found = false;
  Command command;
  for (; at < words.size() && !found; ++at) {
    const std::string& w = words[at].text;
    const bool served = w == "serve" && at > 0 &&
                        (words[at - 1].text == "vllm" || words[at - 1].text.ends_with("/vllm"));
    found = served || w == "vllm.entrypoints.openai.api_server";
  }
  if (!found) {
    throw InputError(where + ":1", "no command \"vllm serve MODEL …\"",
                     "give the command line that starts the server");
  }
  command.line = words[at - 1].line;
  if (at < words.size() && !words[at].text.starts_with("-")) {
    command.model = words[at].text;
    command.line = words[at++].line;
  }
  while (at < words.size()) {
    const Word& w = words[at++];
    if (!w.text.starts_with("-") || w.text.size() < 2) {
      throw InputError(fmt::format("{}:{}", where, w.line),
                       fmt::format("\"{}\" belongs to no flag", w.text.substr(0, 40)),
                       "give one command alone");
    }
    Flag flag;
    flag.line = w.line;
    const std::size_t equals = w.text.find('=');
    flag.name = long_name(w.text.substr(0, equals));
    if (equals != std::string::npos) {
      flag.value = w.text.substr(equals + 1);
      flag.has_value = true;
    } else if (at < words.size() && !words[at].text.starts_with("-")) {
      flag.value = words[at++].text;
      flag.has_value = true;
      // Lists such as --lora-modules a b.
      while (at < words.size() && !words[at].text.starts_with("-")) {
        flag.value += " " + words[at++].text;
      }
    }
    if (flag.name == "--model") {
      if (!command.model.empty()) {
        throw InputError(fmt::format("{}:{}", where, flag.line), "a second model");
      }
      command.model = flag.value;
      continue;
    }
    command.flags.push_back(std::move(flag));
  }
  if (command.model.empty()) {
    throw InputError(fmt::format("{}:{}", where, command.line), "the command names no model");
  }
  return command;
}

std::string toml_text(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

/// A value that may be a size with a suffix (vLLM: 8k = 8,000, 8K = 8,192).
std::optional<std::uint64_t> whole(std::string_view text) {
  std::uint64_t factor = 1;
  if (text.ends_with('k')) factor = 1000;
  if (text.ends_with('K')) factor = 1024;
  if (factor > 1) text.remove_suffix(1);
  std::uint64_t v = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (ec != std::errc{} || end != text.data() + text.size() || v == 0 || v > 1'000'000'000) {
    return std::nullopt;
  }
  return v * factor;
}

}  // namespace

std::string model_of_vllm_args(std::string_view text, const std::string& where) {
  return parse(text, where).model;
}

VllmArgs scenario_from_vllm_args(std::string_view text, const std::string& where,
                                 const VllmArgsOptions& options) {
  const Command command = parse(text, where);
  VllmArgs out;
  out.model = command.model;
  std::uint64_t tp = 1, dp = 1, pp = 1;
  std::size_t dp_line = command.line;
  bool expert_parallel = false;
  std::map<std::string, std::string> batching;  // Of a flag given twice the last one counts.
  std::string kv_block, weights, inputs, activations, kv;
  bool graph = true;  // vLLM captures its decode steps.
  for (const Flag& f : command.flags) {
    const auto fail = [&](const std::string& message, const std::string& hint = {}) {
      throw InputError(fmt::format("{}:{}", where, f.line), message, hint);
    };
    const auto number = [&]() {
      const std::optional<std::uint64_t> v = whole(f.value);
      if (!v) fail(fmt::format("{} = \"{}\". Violated: a whole number > 0", f.name, f.value));
      return *v;
    };
    const auto no_value = [&]() {
      if (f.has_value) fail(fmt::format("{} takes no value", f.name));
    };
    // What changes the work: the key that stands for it, or none. A guess at the rest of such a key
    // (loads, sizes, link) would be a scenario that the command does not describe.
    struct Refused {
      std::string_view flag, key;
    };
    static constexpr std::array<Refused, 11> kRefused{{
        {"--speculative-config", ""},
        {"--speculative-model", ""},
        {"--cpu-offload-gb", "memory.residency (a cache of experts)"},
        {"--kv-transfer-config", "workload.front_end.prefill_replicas"},
        {"--enable-lora", ""},
        {"--enable-dbo", "network.two_batch"},
        {"--enable-eplb", "parallel.placement = \"eplb\""},
        {"--decode-context-parallel-size", ""},
        {"--prefill-context-parallel-size", ""},
        {"--config", ""},
        {"--swap-space", "workload.batching.preemption = \"swap\""},
    }};
    const auto refused = std::find_if(kRefused.begin(), kRefused.end(),
                                      [&](const Refused& r) { return r.flag == f.name; });
    if (refused != kRefused.end() && f.value != "0" &&
        !(f.name.ends_with("parallel-size") && f.value == "1")) {
      fail(fmt::format("unsupported: {} changes what runs", f.name),
           refused->key.empty()
               ? std::string("drop it: nothing in a scenario stands for it")
               : fmt::format("drop it, and set {} in the scenario", refused->key));
    }
    if (f.name == "--tensor-parallel-size") {
      tp = number();
    } else if (f.name == "--data-parallel-size") {
      dp = number();
      dp_line = f.line;
    } else if (f.name == "--pipeline-parallel-size") {
      pp = number();
    } else if (f.name == "--enable-expert-parallel") {
      no_value();
      expert_parallel = true;
    } else if (f.name == "--no-enable-expert-parallel") {
      no_value();
      expert_parallel = false;
    } else if (f.name == "--max-num-seqs") {
      batching["max_sequences"] = fmt::format("{}", number());
    } else if (f.name == "--max-num-batched-tokens") {
      batching["token_budget"] = fmt::format("{}", number());
    } else if (f.name == "--enable-chunked-prefill" || f.name == "--no-enable-chunked-prefill") {
      bool on = f.name == "--enable-chunked-prefill";
      if (f.has_value && f.value != "True" && f.value != "true" && f.value != "False" &&
          f.value != "false") {
        fail(fmt::format("{} = \"{}\". Violated: true or false", f.name, f.value));
      }
      if (f.value == "False" || f.value == "false") on = !on;
      batching["chunked_prefill"] = fmt::format("{}", on);
    } else if (f.name == "--gpu-memory-utilization") {
      double share = 0;
      const auto [end, ec] =
          std::from_chars(f.value.data(), f.value.data() + f.value.size(), share);
      if (ec != std::errc{} || end != f.value.data() + f.value.size() || !(share > 0) ||
          share > 1) {
        fail(fmt::format("{} = \"{}\". Violated: 0 < share <= 1", f.name, f.value));
      }
      batching["memory_share"] = fmt::format("\"{:.10g} %\"", share * 100);
    } else if (f.name == "--enforce-eager") {
      no_value();
      graph = false;
    } else if (f.name == "--block-size") {
      kv_block = fmt::format("{}", number());
    } else if (f.name == "--dtype") {
      if (f.value == "half" || f.value == "float16") {
        activations = "fp16";
      } else if (f.value == "bfloat16") {
        activations = "bf16";
      } else if (f.value == "float" || f.value == "float32") {
        activations = "fp32";
      } else if (f.value != "auto") {
        fail(fmt::format("unsupported: --dtype {}", f.value));
      }
    } else if (f.name == "--quantization") {
      inputs.clear();
      if (f.value == "fp8") {
        weights = inputs = "fp8";  // W8A8: the inputs of the GEMMs are rounded as they run.
      } else if (f.value == "mxfp4") {
        weights = "mxfp4";
      } else if (f.value == "awq" || f.value == "gptq" || f.value == "awq_marlin" ||
                 f.value == "gptq_marlin") {
        weights = "int4_g128";
      } else {
        fail(fmt::format("unsupported: --quantization {}", f.value),
             "known: fp8, mxfp4, awq, gptq (4 bits in groups of 128)");
      }
    } else if (f.name == "--kv-cache-dtype") {
      if (f.value.starts_with("fp8")) {
        kv = "fp8";
      } else if (f.value == "bfloat16") {
        kv = "bf16";
      } else if (f.value != "auto") {
        fail(fmt::format("unsupported: --kv-cache-dtype {}", f.value));
      }
    } else {
      out.left_out.push_back(f.has_value ? f.name + " " + f.value : f.name);
    }
  }
  if (dp > 1 && !expert_parallel) {
    throw InputError(fmt::format("{}:{}", where, dp_line),
                     "unsupported: data parallel without expert parallel, where vLLM cuts each "
                     "expert over dp · tp GPUs",
                     "add --enable-expert-parallel");
  }

  std::string& t = out.scenario;
  // A quoted word may hold a line's end, which would end the comment.
  const auto one_line = [](std::string word) {
    std::replace_if(
        word.begin(), word.end(), [](char c) { return (c < ' ' && c >= 0) || c == 127; }, ' ');
    return word;
  };
  t = fmt::format("# From vllm serve {}\n", one_line(command.model));
  for (const std::string& flag : out.left_out) {
    t += fmt::format("# not taken over: {}\n", one_line(flag));
  }
  t += fmt::format("[model]\nfile = {}\n", toml_text(options.model_file));
  const std::string plain = activations.empty() ? "" : activations;
  std::vector<std::string> formats;
  if (!weights.empty() || !plain.empty()) {
    formats.push_back(fmt::format("experts = \"{}\"", weights.empty() ? plain : weights));
    formats.push_back(fmt::format("shared = \"{}\"", weights.empty() ? plain : weights));
  }
  if (!plain.empty()) formats.push_back(fmt::format("activations = \"{}\"", plain));
  if (!inputs.empty()) formats.push_back(fmt::format("gemm_inputs = \"{}\"", inputs));
  if (!kv.empty() || !plain.empty()) {
    formats.push_back(fmt::format("kv = \"{}\"", kv.empty() ? plain : kv));
  }
  if (!formats.empty()) t += fmt::format("dtype = {{ {} }}\n", fmt::join(formats, ", "));
  t += fmt::format("\n[hardware]\nfile = {}\n\n[parallel]\n", toml_text(options.hardware_file));
  t += fmt::format("attention = \"{}\"\ndp = {}\ntp = {}\npp = {}\nep = {}\n",
                   tp > 1   ? "tp"
                   : pp > 1 ? "pp"
                            : "dp",
                   dp, tp, pp, expert_parallel ? dp * tp : 1);
  if (tp > 1) t += "vocab_parallel = true\n";
  t += fmt::format(
      "\n[workload]\nkind = \"trace\"\n# The command says nothing about the router: give a trace, "
      "or another law.\nrouting = {{ synthetic = \"uniform\" }}\n\n[workload.arrivals]\nfile = "
      "{}\n",
      toml_text(options.requests_file));
  if (!batching.empty()) t += "\n[workload.batching]\n";
  for (const auto& [key, value] : batching) t += fmt::format("{} = {}\n", key, value);
  if (graph) {
    t += "\n[cost]\nlaunch = \"graph\"\n# An assumption, the command cannot say it: the time between two kernels of a "
         "captured graph.\ngraph_kernel = \"1 us\"\n";
  }
  if (!kv_block.empty()) t += fmt::format("\n[memory]\nkv = {{ block = {} }}\n", kv_block);
  return out;
}

}  // namespace switchyard::importers

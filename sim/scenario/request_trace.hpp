// SPDX-License-Identifier: Apache-2.0
// Requests of a serving workload from a file: when each arrives and how many tokens it has.
//
//   csv            arrival_ns,prompt_tokens,output_tokens; this product's own; where the prompts'
//                  blocks are named also hash_ids, numbers with a blank between
//   azure          CSV TIMESTAMP,ContextTokens,GeneratedTokens (Azure LLM inference, wall clock;
//                  the first row is time 0)
//   burstgpt       CSV Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type;
//                  seconds; rows without a response are failed requests and are left out
//   mooncake       JSONL timestamp [ms], input_length, output_length, hash_ids (of the
//                  prompt's blocks of 512 tokens, the last one not full)
//   llmservingsim  JSONL arrival_time_ns, input_toks, output_toks
//
// Columns may stand in any order, others may stand beside them. Times ascend, tokens are > 0.
// Not modelled: sessions, images.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/units.hpp"

namespace switchyard::scenario {

struct TracedRequest {
  SimTime arrival;  ///< From the start of the run, ≥ 0, ascending.
  std::uint32_t prompt_tokens = 0, output_tokens = 0;  ///< > 0.
};

enum class RequestFormat : std::uint8_t { kCsv, kAzure, kBurstGpt, kMooncake, kLlmServingSim };

struct RequestTrace {
  std::vector<TracedRequest> requests;  ///< At least one.
  std::uint64_t left_out = 0;           ///< Rows of requests that failed.
  bool hash_ids = false;                ///< The file names shareable prefixes.
  /// Of all requests one after another, those of request i from hash_begin[i] to hash_begin[i + 1];
  /// both empty without hash_ids.
  std::vector<std::uint64_t> hashes;
  std::vector<std::size_t> hash_begin;
  std::vector<std::uint32_t> lines;  ///< Of the file, from 1; one per request.
  [[nodiscard]] std::span<const std::uint64_t> hashes_of(std::size_t request) const {
    if (hash_begin.empty()) return {};
    return std::span(hashes).subspan(hash_begin[request],
                                     hash_begin[request + 1] - hash_begin[request]);
  }
};

/// `name` stands for the file in messages: "name:line". Throws InputError.
RequestTrace parse_request_trace(std::string_view text, const std::string& name,
                                 RequestFormat format);

/// The csv form; `with_hashes`: with the column hash_ids where the trace has them.
std::string request_trace_csv(const RequestTrace& trace, bool with_hashes = true);

}  // namespace switchyard::scenario

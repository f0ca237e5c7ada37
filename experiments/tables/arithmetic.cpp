// SPDX-License-Identifier: Apache-2.0
#include "experiments/tables/arithmetic.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/atomic_file.hpp"
#include "engine/base/error.hpp"
#include "engine/model/accounting.hpp"
#include "experiments/tables/arithmetic_sums.hpp"
#include "sim/scenario/bandwidth_table.hpp"
#include "sim/scenario/hardware.hpp"

namespace switchyard::tables {
namespace {

using model::DType;
using model::DTypeChoice;
using model::ModelConfig;
using sums::as_double, sums::fp16, sums::uniform, sums::Sums;
using sums::kB, sums::kGB, sums::kMB, sums::kMiB, sums::kT, sums::kTB;

constexpr std::array<const char*, 10> kModels{
    "gpt4_s0", "gpt4_s1",     "gpt4_s1_110",    "gpt4_s2",       "gpt4_s3",
    "gpt4_s4", "deepseek_r1", "qwen2_57b_a14b", "ds_moe_16b_s3", "deepseek_moe_16b"};

// Figures of the articles that are not the value of a row here.
constexpr double kS1Exchange = 220, kS1Nvlink = 900;  // S1 2.2, GB and GB/s as printed
constexpr double kS1ExchangeMs = 310, kS1ExchangeShare = 0.42;
constexpr double kS1StartUp = 7.4;  // NCCL all-to-all floor on H100 and H200, us.

/// C(n, k) as a double.
double choose(double n, double k) { return k <= 0 ? 1.0 : choose(n - 1, k - 1) * n / k; }

/// Distinct GPUs of a token that picks k of E experts evenly, E / gpus on each.
double distinct_gpus(double experts, double k, double gpus) {
  return gpus * (1.0 - choose(experts - experts / gpus, k) / choose(experts, k));
}

void measure_s1(Sums& s) {
  const ModelConfig& m = s.model("gpt4_s1");
  const ModelConfig& qwen = s.model("qwen2_57b_a14b");
  const auto count = model::count_parameters(m);
  const auto active = model::count_active(m);
  const double layers = as_double(m.num_moe_layers());
  const double k = as_double(m.top_k);

  const double exchange = kGB * s.figure("GB of the exchange (S1 2.2)", kS1Exchange);
  const double exchange_ms = s.figure("ms of the exchange (S1 2.2)", kS1ExchangeMs);
  const double nvlink = kGB * s.figure("GB/s of NVLink as printed (S1 2.2)", kS1Nvlink);
  s.add("c24.theory", 1e3 * exchange / nvlink, "220 / 900");
  s.add("c24.direction", 1e3 * exchange / (nvlink / 2), "220 / 450");
  const double payload = layers * 2 * k * fp16(as_double(m.hidden_size));
  s.add("c24.payload", payload / kGB,
        fmt::format("{} layers x 2 x {} x {} x 2 bytes = {} MiB", layers, k, m.hidden_size,
                    show(payload / kMiB)));
  const double wire = payload * 7 / 8 / s.in().nvlink4;
  const double floor = 2 * layers * 1e-6 * s.figure("us to start an exchange", kS1StartUp);
  s.add("c24.time", 1e3 * (wire + floor),
        fmt::format("{} us + {} x 7.4 us", show(1e6 * wire), show(2 * layers)));
  s.add("c24.int4", exchange_ms / s.figure("bits of FP16 over bits of INT4", 4),
        fmt::format("310 / 4; at 42 % of a token, the token takes {} ms",
                    show(kS1ExchangeMs / kS1ExchangeShare)));

  const double one = fp16(as_double(model::expert_parameters_all_layers(m)));
  const double experts = as_double(m.num_experts);
  const double backbone = fp16(as_double(count.dense()));
  const double resident = s.count("experts resident (S1 2.3)", 4);
  s.add("c25.before", experts * one / kTB, fmt::format("16 x {} GB", show(one / kGB)));
  s.add("c25.after", (resident * one + backbone) / kTB,
        fmt::format("4 x {} + {} GB", show(one / kGB), show(backbone / kGB)));
  s.add("c25.after_alone", resident * one / kTB, fmt::format("4 x {} GB", show(one / kGB)));
  const double expert = fp16(as_double(model::expert_parameters(m)));
  const double missing = layers * k * (experts - resident) / experts * expert;
  const auto load = [&](const char* quantity, double bytes, double rate) {
    s.add(quantity, 1e3 * bytes / rate,
          fmt::format("{} GB / {} GB/s", show(bytes / kGB), show(rate / kGB)));
  };
  const double pcie5 = kGB * s.figure("GB/s of host memory over PCIe 5", 64);
  load("c25.ssd7", missing, kGB * s.figure("GB/s of the slower SSD", 7));
  load("c25.ssd14", missing, kGB * s.figure("GB/s of the faster SSD", 14));
  load("c25.pcie5", missing, pcie5);
  load("c25.one", expert, pcie5);
  load("c25.hidden", missing, pcie5);

  s.add("c26.dense_rate", 1e3 / 89, "1000 / 89");
  s.add("c26.sparse_rate", 1e3 / 63, "1000 / 63");
  const double all = fp16(as_double(model::count_parameters(qwen).total()));
  const double chosen = fp16(as_double(model::count_active(qwen).total()));
  s.add("c26.ratio", all / chosen, fmt::format("{} / {} GB", show(all / kGB), show(chosen / kGB)));
  s.add("c26.memory", all / s.count("cards (S1 3.1)", 2) / kGB,
        fmt::format("{} / 2", show(all / kGB)));

  const double contended = s.figure("ms of the contended exchange (S1 3.2)", 112.6);
  const double barrier = s.figure("ms of it with a barrier (S1 3.2)", 78.4);
  s.add("c27.exchange", 100 * (contended - barrier) / contended, "(112.6 - 78.4) / 112.6");
  s.add("c27.token", 100.0 * (1420 - 1280) / 1420, "(1420 - 1280) / 1420");
  s.add("c27.saved", contended - barrier, "112.6 - 78.4");
  s.add("c27.fits", contended, "its own exchange");
  s.add("c28.warm", 100.0 * (1280 - 950) / 1280, "(1280 - 950) / 1280");
  const auto qwen_count = model::count_parameters(qwen);
  const double int4 = as_double(model::weight_bytes(qwen_count, uniform(DType::kInt4G128)));
  const double kv768 = as_double(model::kv_bytes(qwen, DType::kBf16, 768));
  s.add("c28.int4", (int4 + kv768) / kGB,
        fmt::format("{} + {} GB", show(int4 / kGB), show(kv768 / kGB)));
  const double pcie = kGB * s.figure("GB/s of PCIe 4 as measured", 26);
  s.add("c28.rest", (all - s.figure("GB left after offload (S1 3.3)", 42.1) * kGB) / pcie,
        fmt::format("({} - 42.1) / 26", show(all / kGB)));
  const double routed = fp16(as_double(qwen_count.experts));
  s.add("c28.half", routed / 2 / pcie, fmt::format("{} / 2 / 26", show(routed / kGB)));

  const double kv = as_double(
      model::kv_bytes(qwen, DType::kBf16,
                      static_cast<std::uint64_t>(s.count("tokens of a sequence (S1 4.1)", 4096))));
  s.add("c29.once", kv / kGB,
        fmt::format("4096 x {} B; 1.5 GB are {} tokens",
                    model::kv_bytes_per_token(qwen, DType::kBf16),
                    show(1.5e9 / as_double(model::kv_bytes_per_token(qwen, DType::kBf16)))));
  s.add("c29.sixteen", s.count("sequences (S1 4.1)", 16) * kv / kGB,
        fmt::format("16 x {} GB", show(kv / kGB)));
  s.add("c29.copies", 24 / 1.5, "24 / 1.5");

  const double window = s.count("tokens of the window (S1 4.3)", 1000);
  const double share = k / experts;
  s.add("c31.floor", 100 * std::sqrt((1 - share) / (window * share)),
        fmt::format("sqrt((1 - k/E) / (W k/E)), E = {}, k = {}, W = {}", experts, k, window));

  const double group = s.count("experts of a group (S1 4.4)", 4);
  for (const double gpus : {2.0, 4.0, 8.0, 16.0}) {
    const double in_group = std::max(1.0, gpus * group / experts);
    const double grouped = distinct_gpus(group, k, in_group);
    const double plain = distinct_gpus(experts, k, gpus);
    s.add(fmt::format("c32.gpus{}", gpus), grouped / plain,
          fmt::format("{} / {} distinct GPUs", show(grouped), show(plain)));
  }
  s.add("c33.own", 1e3 * exchange / s.in().optical,
        fmt::format("220 GB / {} TB/s", show(s.in().optical / kTB)));
  s.add("c33.payload", 1e3 * (payload * 7 / 8 / s.in().optical + floor),
        fmt::format("{} us + {} x 7.4 us; NVLink: {} us + the same",
                    show(1e6 * payload * 7 / 8 / s.in().optical), show(2 * layers),
                    show(1e6 * wire)));

  s.add("c70.experts", 100 * (1 - share), "1 - k / E");
  s.add("c70.whole", 100 * (1 - as_double(active.total()) / as_double(count.total())),
        fmt::format("1 - {} / {} B", show(as_double(active.total()) / kB),
                    show(as_double(count.total()) / kB)));
  const double mean = 100 * (1 / experts + 2 / experts) / 2;
  s.add("c70.mean_low", mean, "(6.25 + 12.5) / 2");
  s.add("c70.mean_high", mean, "(6.25 + 12.5) / 2");
  s.add("c70.least", 100 / experts, "all layers top-1");
  s.add("c71.dense", 100 * 1.8 / 3, "1.8 / 3, one token a second");
  s.add("c71.own", 100 * (1 - exchange / (kTB * s.figure("TB of the dense model (S1 2.1)", 1.8))),
        "1 - 220 / 1800");
  s.add("c71.preset", 100 * (1 - as_double(active.total()) / as_double(count.total())),
        "1 - active / all parameters");
  s.add("c72.eleven",
        s.count("experts (S1 1)", 16) * s.figure("B parameters of an expert (S1 1)", 11) / 1e3,
        "16 x 11 B");
  const ModelConfig& larger = s.model("gpt4_s1_110");
  const auto larger_count = model::count_parameters(larger);
  s.add(
      "c72.hundredten", as_double(larger_count.experts) / kT,
      fmt::format("16 x {} B", show(as_double(model::expert_parameters_all_layers(larger)) / kB)));
  s.add("c72.hundred", as_double(count.experts) / kT, fmt::format("16 x {} B", show(one / 2 / kB)));
  s.add("c72.total", as_double(larger_count.total()) / kT, "experts and backbone");

  const auto layer = model::count_layer(m, 0);
  const double dense = s.count("dense layers (S1 2.2)", 31) * as_double(layer.total());
  const double dense_gb = s.figure("GB of the dense layers (S1 2.2)", 48);
  s.add("c73.flops", 2 * dense / 1e9,
        fmt::format("2 x 31 x {} B", show(as_double(layer.total()) / kB)));
  s.add("c73.own_flops", 2 * dense_gb / 2.0, "2 x 48 GB / 2 bytes");
  s.add("c73.bytes", fp16(dense) / kGB,
        fmt::format("31 x {} B x 2 bytes", show(as_double(layer.total()) / kB)));
  s.add("c73.time", 1e3 * dense_gb * kGB / s.in().hbm_h100,
        fmt::format("48 GB / {} TB/s", show(s.in().hbm_h100 / kTB)));
  s.add("c74.rate", 1 / 1.2, "1 / 1.2");
  const double buffer = 2 * s.count("tokens of the buffer (S1 4.1)", 4096) *
                        as_double(qwen.top_k * qwen.hidden_size) * 2;
  s.add("c76.buffer", buffer / kGB,
        fmt::format("2 x 4096 x {} x {} x 2 bytes", qwen.top_k, qwen.hidden_size));
  s.add("c76.card", s.printed("C76a"), "2 x 45 GB of expert weights");
  s.add("c76.sum", 45 + 12 + 15, "45 + 12 + 15");
  s.add("c77.own", exchange / kGB / (1e-3 * exchange_ms), "220 GB / 310 ms");
  s.add("c77.nccl", s.in().nccl_largest / kGB,
        "scenarios/network/nccl_alltoall_h100x8.csv, of 450 GB/s per direction");
}

void measure_s2(Sums& s) {
  const ModelConfig& m = s.model("gpt4_s2");
  const ModelConfig& r1 = s.model("deepseek_r1");
  const ModelConfig& qwen = s.model("qwen2_57b_a14b");
  const auto stated = [&](const char* key) {
    const auto it = m.stated.find(key);
    SWITCHYARD_ASSERT(it != m.stated.end(), key);
    return as_double(it->second);
  };
  const double hbm = s.figure("GB/s of the memory (S2 2.3)", 2000);
  s.add("c36.dense_high", 100.0 * s.figure("GB/s of a dense model, upper (S2 2.3)", 500) / hbm,
        "500 / 2000");
  s.add("c36.dense_low", 100.0 * 300 / hbm, "300 / 2000");
  s.add("c36.moe", 100 * 1.8 / 2, "1.8 / 2; 1.9 / 2 is 95");
  const auto hours = [&](const char* quantity, double rate) {
    s.add(quantity, 1e6 / rate / 3600, fmt::format("10^6 / {} / 3600", rate));
  };
  hours("c37.dense", s.figure("tok/s, dense (C81)", 5));
  hours("c37.moe", 50);
  hours("c37.moe_resident", s.figure("tok/s on four cards (S2 4.1)", 85));
  const double dense_hours = s.figure("hours, dense (S2 2.3)", 12);
  s.add("c37.energy",
        s.figure("kWh, dense (S2 2.3)", 180) / dense_hours * s.figure("hours, MoE (S2 2.3)", 6),
        "180 kWh / 12 h x 6 h; its 135 kWh are 22.5 kW");
  s.add("c37.cards",
        dense_hours * s.count("cards (S2 4.1)", 4) * s.figure("kW of a card (S2 4.3)", 0.3),
        "12 h x 4 x 0.3 kW; its 180 kWh are 50 such cards");
  const double both_hot = s.share("share of the two hot experts (S2 3.3)", 0.8);
  for (const double known : {16.0, 128.0}) {
    const double experts = s.count(fmt::format("experts of the reading E {}", known), known);
    const double mean = 1 / experts;
    const double hot = both_hot / 2;
    const double rest = (1 - both_hot) / (experts - 2);
    const double deviation = std::sqrt(
        (2 * (hot - mean) * (hot - mean) + (experts - 2) * (rest - mean) * (rest - mean)) /
        experts);
    // Two hot experts of share x, the others even: CV = (x E - 1) sqrt(2 / (E - 2)).
    const double both = 2 * (mean + 0.42 * mean * std::sqrt((experts - 2) / 2));
    s.add(fmt::format("c38.cv{}", known), deviation / mean,
          fmt::format("shares 0.4, 0.4 and {} others of {}; CV 0.42 is {} % on both", experts - 2,
                      show(rest), show(100 * both)));
    s.add(fmt::format("c38.std{}", known), deviation, "the same, not over the mean");
  }
  const double r1_active = as_double(model::count_active(r1).total());
  const double qwen_active = fp16(as_double(model::count_active(qwen).total()));
  const double cards = s.count("cards (S2 4.1)", 4);
  const double links = cards * s.in().pcie4;
  s.add("c39.reload", links / r1_active,
        fmt::format("4 x {} GB/s / {} GB", show(s.in().pcie4 / kGB), show(r1_active / kGB)));
  s.add("c39.reload_qwen", links / qwen_active,
        fmt::format("4 x {} GB/s / {} GB", show(s.in().pcie4 / kGB), show(qwen_active / kGB)));
  s.add("c39.bound", 4 * s.in().hbm_a100 / r1_active,
        fmt::format("4 x {} TB/s / {} GB", show(s.in().hbm_a100 / kTB), show(r1_active / kGB)));
  const double r1_bytes =
      as_double(model::weight_bytes(model::count_parameters(r1), uniform(DType::kF8E4M3)));
  s.add("c39.fits", r1_bytes <= cards * s.in().card ? 1 : 0,
        fmt::format("{} GB of {} GB", show(r1_bytes / kGB), show(4 * s.in().card / kGB)));
  const double energy = 0.3 * 8760 * 0.12;
  const double year = energy + 10000.0 / 3;
  s.add("c40.energy", energy,
        fmt::format("0.3 kW x 8760 h x 0.12 $: {} % of the {} $ a year costs with its price",
                    show(100 * energy / year), show(year)));
  constexpr double kRate = 85;  // S2 4.1, tok/s on four cards
  const double million = year / (kRate * 8760 * 3600) * 1e6;
  s.undecided(
      "c40.cheaper",
      fmt::format("the article's prices, powers and rates of H100 are lost; an A100 costs "
                  "{} $ a year, so the claim holds where an H100 costs {} $ x (its rate / "
                  "the A100's) a year or more; a million tokens at 85 tok/s cost {} $ on one card, "
                  "{} $ on the four that give 85",
                  show(year), show(year / 0.85), show(million), show(4 * million)));
  s.add("c42.active", 0.008 * 2.5e12 / kB, "0.8 % x 2.5 T");
  const double stated_total = stated("total");
  s.add("c79.fp16", fp16(stated_total) / kTB, fmt::format("{} x 2 bytes", stated_total));
  const double experts = as_double(m.num_experts) * stated("expert");
  s.add("c80.experts", experts / kT,
        fmt::format("{} x {} B", m.num_experts, show(stated("expert") / kB)));
  const double total = experts + stated("embedding") + stated("attention");
  s.add("c80.total", total / kT,
        fmt::format("{} + {} + {} B", show(experts / kB), show(stated("embedding") / kB),
                    show(stated("attention") / kB)));
  const double matrix = as_double(2 * m.hidden_size * m.expert_intermediate);
  s.add("c80.expert", matrix / kB,
        fmt::format("{} x {} x 2; 13 B are {} such layers", m.hidden_size, m.expert_intermediate,
                    show(13e9 / matrix)));
  s.add("c81.ratio", 1.7e12 / 36e9, "1700 / 36");
  s.add("c82.tensorrt", 1 / 0.32,
        fmt::format("1 / 0.32; Triton's 57 % off the latency are {} times", show(1 / 0.43)));
  s.add("c86.active", r1_active / kB,
        "count_active: shared expert, attention, embeddings and head");
  s.add("c86.total", as_double(model::count_parameters(r1).total()) / kB, "without the MTP module");
}

void measure_s3(Sums& s) {
  const ModelConfig& m = s.model("gpt4_s3");
  const double active = fp16(as_double(m.stated.at("active")));
  s.add("c46.before", active / kGB, "36 B x 2 bytes: the 36 B are both experts");
  const double shard = active / as_double(m.top_k) / s.count("shards of an expert (S3 3.2)", 16);
  s.add("c46.after", as_double(m.top_k) * s.count("shards on the card (S3 3.2)", 3) * shard / kGB,
        fmt::format("{} experts x 3 x {} GB; 2 of them {} GB", m.top_k, show(shard / kGB),
                    show(as_double(m.top_k) * 2 * shard / kGB)));
  s.add("c46.own", s.printed("C46a") * 5 / 16, "144 x 5 / 16");
  const double scratch_tokens = s.count("tokens of the router scratch (S3 3.2)", 32768);
  const double experts = as_double(m.num_experts);
  s.add("c47.scratch", scratch_tokens * experts * 4 / kMiB, "32768 x 128 x 4 bytes");
  const double per_token =
      as_double(2 * m.hidden_size + m.top_k * (m.hidden_size + m.expert_intermediate));
  s.add(
      "c47.activations", scratch_tokens * fp16(per_token) / kGB,
      fmt::format("32768 x {} x 2 bytes; there is no backward pass to keep layers for", per_token));
  s.add("c47.kv", scratch_tokens * as_double(model::kv_bytes_per_token(m, DType::kF16)) / kGB,
        fmt::format("32768 x {} B", model::kv_bytes_per_token(m, DType::kF16)));
  s.add("c47.kv_own",
        scratch_tokens * 2 * s.count("layers of the backbone (S3 3.2)", 96) *
            s.count("hidden size of the backbone (S3 3.2)", 8192) * 2 / kGB,
        "32768 x 2 x 96 x 8192 x 2 bytes");
  const double exchange = s.figure("ms of the exchange (S3 3.3)", 10);
  const double compute = s.figure("ms of expert compute (S3 3.3)", 3);
  s.add("c48.hidden", exchange <= compute ? 1 : 0,
        "at least max(10, 3) of 13 ms stay; it hides where compute takes as long");
  const double users = s.count("users (S3 4.3)", 100);
  const double rate = s.figure("tok/s (S3 4.3)", 1500);
  const auto little = [&](const char* quantity, double tokens, const char* how) {
    s.add(quantity, users * tokens / rate,
          fmt::format("100 users x {} tokens / 1500; 2.5 s need {} tok/s", how,
                      show(100 * tokens / 2.5)));
  };
  little("c49.short", s.count("tokens of an answer (S3 4.3)", 128), "128");
  little("c49.mixed", (10.0 + 200 + s.count("tokens of a long answer (S3 4.3)", 2000)) / 3, "737");
  const double mean = 1 / experts;
  const double hot = 0.9 / 5;
  const double cold = 0.1 / (experts - 5);
  s.add(
      "c50.cv",
      std::sqrt((5 * (hot - mean) * (hot - mean) + (experts - 5) * (cold - mean) * (cold - mean)) /
                experts) /
          mean,
      "shares 0.18 x 5, the rest even");
  const double h = as_double(m.hidden_size);
  const double product = as_double(m.num_layers) * h * 4 * h;
  s.add("c84.product", product / kB, "32 x 67.1 M: the claim has one digit too many");
  s.add("c84.own", experts * s.printed("C84a") * 1e9 / kT, "128 x 21.5 B");
  s.add("c84.experts", experts * product / kT, fmt::format("128 x {} B", show(product / kB)));
  s.add("c84.preset", as_double(model::count_parameters(m).experts) / kT,
        "32 layers x 128 x 2 x 4096 x 16384");
  s.add("c85.blocks", s.in().card / active,
        fmt::format("{} / {} GB", show(s.in().card / kGB), show(active / kGB)));
  s.add("c85.fp16",
        2 * kB * s.figure("B parameters of a dense model (S3 2.1)", 28) > s.in().card ? 1 : 0,
        "28 B x 2 bytes of 80 GB");
  s.add("c85.fp32", 28e9 * 4 > s.in().card ? 1 : 0, "28 B x 4 bytes of 80 GB");
  const auto total = [&](const char* quantity, const char* name) {
    const auto count = model::count_parameters(s.model(name));
    s.add(quantity, as_double(count.total()) / kB, fmt::format("{}: {}", name, count.total()));
  };
  total("c88.printed", "ds_moe_16b_s3");
  total("c88.real", "deepseek_moe_16b");
}

void measure_s4(Sums& s) {
  const ModelConfig& m = s.model("gpt4_s4");
  const auto count = model::count_parameters(m);
  const double cards = s.count("cards (S4 3.1)", 16);
  const auto use = [&](const char* quantity, double share) {
    s.add(quantity, 100 / as_double(m.num_experts) / (share / 3),
          fmt::format("(1/{}) / ({} / 3); 60 to 70 % need a share of {} to {} % or less",
                      m.num_experts, share, show(300 / as_double(m.num_experts) / 0.6),
                      show(300 / as_double(m.num_experts) / 0.7)));
  };
  use("c53.english", s.share("share of top-3, English (S4 2.3)", 0.45));
  use("c53.chinese", s.share("share of top-3, Chinese (S4 2.3)", 0.52));
  use("c56.use", s.share("share of top-3 at batch 256 (S4 3.3)", 0.68));
  s.add("c54.expert", fp16(as_double(model::expert_parameters_all_layers(m))) / kGB,
        fmt::format("{} layers x {} x 2 bytes", m.num_moe_layers(), model::expert_parameters(m)));
  s.add("c54.layer", fp16(as_double(model::expert_parameters(m))) / kGB,
        fmt::format("{} x 2 bytes", model::expert_parameters(m)));
  s.add("c54.ends", fp16(as_double(count.embedding + count.head)) / kGB,
        fmt::format("2 x {} x {} x 2 bytes", m.vocab_size, m.hidden_size));
  const auto length = static_cast<std::uint64_t>(s.count("tokens of a sequence (S4 3.1)", 2048));
  const double kv =
      s.count("sequences (S4 3.1)", 32) * as_double(model::kv_bytes(m, DType::kF16, length));
  s.add("c54.kv", kv / cards / kGB, fmt::format("{} GB / 16", show(kv / kGB)));
  const double weights = as_double(model::weight_bytes(count, uniform(DType::kF16)));
  s.add("c54.fits", weights / kGB, fmt::format("{} parameters x 2 bytes", count.total()));
  const double scatter =
      s.count("tokens of the scatter (S4 3.2)", 1024) * fp16(as_double(m.hidden_size));
  s.add("c55.one", scatter / kMB,
        fmt::format("1024 x {} x 2 bytes: {} us at {} GB/s", m.hidden_size,
                    show(1e6 * scatter / s.in().nvlink3), show(s.in().nvlink3 / kGB)));
  s.add("c55.two", s.count("copies of a token (S4 3.2)", 2) * scatter / kMB,
        fmt::format("2 x {} MB", show(scatter / kMB)));
  const RoutingOverhead overhead{.at128 = s.share("routing share at batch 128 (S4 2.3)", 0.18),
                                 .at1024 = s.share("routing share at batch 1024 (S4 2.3)", 0.06)};
  s.add("c55.share", 100 * overhead.at128, "routing and scatter, 18 % at batch 128 and less above");
  s.add("c56.p95", 100 * (1 / s.figure("p95 over that at 256 (S4 3.3)", 0.76) - 1), "1 / 0.76 - 1");

  const double room = s.figure("GB of a card", 80) - s.figure("GB at the start (S4 5.3)", 45);
  const double sequence = as_double(model::kv_bytes(m, DType::kF16, 2048));
  s.add("c60.quick", room / s.figure("GB/h, faster leak (S4 5.3)", 2),
        fmt::format("35 GB / 2 GB/h; 2 GB are {} sequences of 2048 tokens", show(2e9 / sequence)));
  s.add("c60.slow", room / s.figure("GB/h, slower leak (S4 5.3)", 1), "35 GB / 1 GB/h");
  s.add("c90.implied", 100 * (1 - overhead.odds(256) / overhead.odds(32)),
        fmt::format("overhead / rest = {} + {} / batch: {} % at 32, {} % at 256",
                    show(overhead.token), show(overhead.fixed), show(100 * overhead.share(32)),
                    show(100 * overhead.share(256))));

  s.add("c93.own", 80 - 4.3 - 15.9, "80 - 4.3 - 15.9");
  s.add("c93.sum", 11.2 + 3.8 + 0.9, "11.2 + 3.8 + 0.9");
  const auto elastic = [&](const char* quantity, DType experts) {
    DTypeChoice d = uniform(DType::kF16);
    d.experts = experts;
    const double card = as_double(model::weight_bytes(count, d)) / cards / kGB;
    s.add(quantity, s.figure("GB of a card", 80) - card - kv / cards / kGB - 3.8 - 0.9,
          fmt::format("80 - {} - {} - 3.8 - 0.9", show(card), show(kv / cards / kGB)));
  };
  elastic("c93.fp16", DType::kF16);
  elastic("c93.int4", DType::kInt4);
}

/// The contradicted rows, by how much claim and arithmetic differ.
Table factors_table(const std::vector<claims::Judged>& judged) {
  Table t;
  t.name = "arithmetic";
  t.title = "claims that arithmetic contradicts: what is claimed over what follows";
  t.columns = {"row", "source", "claim", "read as", "unit", "claimed", "ours", "claimed / ours"};
  for (const auto& j : judged) {
    if (j.verdict != claims::Verdict::kContradicted || j.claim.yes_no()) {
      continue;
    }
    const double ours = *j.measured.value;
    t.rows.push_back(
        {j.claim.row, j.claim.source, j.claim.text, j.claim.reading, j.claim.unit, j.claim.printed,
         show(ours),
         ours > 0 && j.claim.value > 0 ? fmt::format("{:.3g}", j.claim.value / ours) : "n/a"});
  }
  t.notes.emplace_back(
      "an assumption that enters in proportion makes the claim true when it is this factor larger");
  return t;
}

}  // namespace

ArithmeticInputs arithmetic_inputs(const std::filesystem::path& scenarios) {
  ArithmeticInputs inputs;
  const auto read = [&](const char* name) {
    inputs.models[name] =
        model::read_model_config(scenarios / "models" / fmt::format("{}.json", name));
  };
  for (const char* name : kModels) {
    read(name);
  }
  const auto hardware = [&](const char* name) {
    return scenario::read_hardware(
        (scenarios / "hardware" / fmt::format("{}.toml", name)).string());
  };
  const auto rate = [](const scenario::HardwareSpec& spec, scenario::LinkClass link_class) {
    for (const scenario::Link& link : spec.links) {
      if (link.link_class == link_class) {
        return link.bandwidth.value;
      }
    }
    throw InputError(spec.name, "it has no link of the class that the table asks for");
  };
  const auto a100 = hardware("hgx_a100");
  const auto h100 = hardware("hgx_h100");
  inputs.card = as_double(a100.gpu_type(0).memory_bytes);
  inputs.hbm_a100 = a100.gpu_type(0).hbm.value;
  inputs.hbm_h100 = h100.gpu_type(0).hbm.value;
  inputs.nvlink3 = rate(a100, scenario::LinkClass::kNvlink3);
  inputs.nvlink4 = rate(h100, scenario::LinkClass::kNvlink4);
  inputs.pcie4 = rate(a100, scenario::LinkClass::kPcie4);
  inputs.optical = rate(hardware("whatif_optical"), scenario::LinkClass::kOther);
  const auto file = scenarios / "network" / "nccl_alltoall_h100x8.csv";
  inputs.nccl_largest =
      scenario::parse_bandwidth_table(read_file(file), file.string()).back().bandwidth.value;
  return inputs;
}

claims::Measurements measure_arithmetic(const ArithmeticInputs& inputs,
                                        const std::vector<claims::Claim>& claims,
                                        std::vector<Figure>* figures) {
  claims::Measurements out;
  Sums collected(inputs, claims, out, figures);
  sums::measure_s0(collected);
  measure_s1(collected);
  measure_s2(collected);
  measure_s3(collected);
  measure_s4(collected);
  return out;
}

std::vector<Table> arithmetic_tables(const ArithmeticInputs& inputs,
                                     const std::vector<claims::Claim>& claims) {
  const auto judged = claims::judge(claims, measure_arithmetic(inputs, claims));
  return {factors_table(judged), claims_table("arithmetic", judged),
          verdicts_table("arithmetic", judged)};
}

std::vector<Table> make_arithmetic(const TableContext& context) {
  return arithmetic_tables(arithmetic_inputs(context.scenarios), claims::claims_of("arithmetic"));
}

}  // namespace switchyard::tables

// SPDX-License-Identifier: Apache-2.0
// Private to engine/routing: the spelling of the policy's enumerations.
#pragma once
#include <array>

#include "engine/routing/policy.hpp"
#include "engine/routing/text_fields.hpp"

namespace switchyard::policy_names {

using text_fields::Name;
using text_fields::name_of;

inline constexpr std::array kRules{
    Name<CapacityRule>{"none", CapacityRule::kNone},
    Name<CapacityRule>{"share", CapacityRule::kShare},
    Name<CapacityRule>{"batch_tokens", CapacityRule::kBatchTokens},
    Name<CapacityRule>{"batch_seqs", CapacityRule::kBatchSeqs},
    Name<CapacityRule>{"absolute", CapacityRule::kAbsolute},
    Name<CapacityRule>{"mesh", CapacityRule::kMesh},
    Name<CapacityRule>{"flaxformer", CapacityRule::kFlaxformer},
    Name<CapacityRule>{"deepspeed", CapacityRule::kDeepSpeed},
    Name<CapacityRule>{"megatron", CapacityRule::kMegatron},
    Name<CapacityRule>{"tutel", CapacityRule::kTutel},
    Name<CapacityRule>{"megablocks", CapacityRule::kMegaBlocks},
    Name<CapacityRule>{"fastmoe_gshard", CapacityRule::kFastMoeGshard},
    Name<CapacityRule>{"fastmoe_switch", CapacityRule::kFastMoeSwitch},
    Name<CapacityRule>{"fairseq_train", CapacityRule::kFairseqTrain},
    Name<CapacityRule>{"fairseq_eval", CapacityRule::kFairseqEval}};
inline constexpr std::array kScopes{Name<CapacityScope>{"auto", CapacityScope::kAuto},
                                    Name<CapacityScope>{"global", CapacityScope::kGlobal},
                                    Name<CapacityScope>{"rank", CapacityScope::kRank},
                                    Name<CapacityScope>{"group", CapacityScope::kGroup}};
inline constexpr std::array kOrders{Name<OverflowOrder>{"position", OverflowOrder::kPosition},
                                    Name<OverflowOrder>{"prob", OverflowOrder::kProb},
                                    Name<OverflowOrder>{"random", OverflowOrder::kRandom}};
inline constexpr std::array kModes{Name<OverflowMode>{"auto", OverflowMode::kAuto},
                                   Name<OverflowMode>{"sequential", OverflowMode::kSequential},
                                   Name<OverflowMode>{"rounds", OverflowMode::kRounds}};
inline constexpr std::array kReroutes{Name<Reroute>{"next", Reroute::kNext},
                                      Name<Reroute>{"none", Reroute::kNone}};
inline constexpr std::array kExhausted{Name<Exhausted>{"top1", Exhausted::kTop1},
                                       Name<Exhausted>{"drop_token", Exhausted::kDropToken},
                                       Name<Exhausted>{"queue", Exhausted::kQueue}};
inline constexpr std::array kQueues{Name<QueueMode>{"wave", QueueMode::kWave},
                                    Name<QueueMode>{"defer", QueueMode::kDefer}};
inline constexpr std::array kDynamics{Name<DynamicCapacity>{"fixed", DynamicCapacity::kFixed},
                                      Name<DynamicCapacity>{"phase", DynamicCapacity::kPhase},
                                      Name<DynamicCapacity>{"log2", DynamicCapacity::kLog2}};
inline constexpr std::array kRenorms{Name<WeightRenorm>{"final", WeightRenorm::kFinal},
                                     Name<WeightRenorm>{"none", WeightRenorm::kNone},
                                     Name<WeightRenorm>{"first", WeightRenorm::kFirst}};

inline constexpr std::array kNoiseModes{Name<NoiseMode>{"off", NoiseMode::kOff},
                                        Name<NoiseMode>{"fixed", NoiseMode::kFixed},
                                        Name<NoiseMode>{"adaptive", NoiseMode::kAdaptive}};
inline constexpr std::array kSwitch{Name<bool>{"off", false}, Name<bool>{"on", true}};
inline constexpr std::array kSemanticModes{Name<SemanticMode>{"off", SemanticMode::kOff},
                                           Name<SemanticMode>{"mlp", SemanticMode::kMlp},
                                           Name<SemanticMode>{"ema", SemanticMode::kEma},
                                           Name<SemanticMode>{"identity", SemanticMode::kIdentity}};
inline constexpr std::array kSemanticInputs{Name<SemanticInput>{"logits", SemanticInput::kLogits},
                                            Name<SemanticInput>{"input", SemanticInput::kInput}};
inline constexpr std::array kTemperaturePlaces{
    Name<TemperaturePlace>{"off", TemperaturePlace::kOff},
    Name<TemperaturePlace>{"before", TemperaturePlace::kBefore},
    Name<TemperaturePlace>{"after", TemperaturePlace::kAfter}};
inline constexpr std::array kControllers{
    Name<TemperatureController>{"off", TemperatureController::kOff},
    Name<TemperatureController>{"sequence", TemperatureController::kSequence},
    Name<TemperatureController>{"across", TemperatureController::kAcross}};
inline constexpr std::array kGumbelModes{Name<GumbelMode>{"off", GumbelMode::kOff},
                                         Name<GumbelMode>{"tau_noise", GumbelMode::kTauNoise},
                                         Name<GumbelMode>{"tau_all", GumbelMode::kTauAll}};
inline constexpr std::array kLoadLevels{
    Name<LoadLevel>{"off", LoadLevel::kOff}, Name<LoadLevel>{"total", LoadLevel::kTotal},
    Name<LoadLevel>{"elastic", LoadLevel::kElastic}, Name<LoadLevel>{"queue", LoadLevel::kQueue}};
inline constexpr std::array kScoreRules{Name<ScoreRule>{"family", ScoreRule::kFamily},
                                        Name<ScoreRule>{"linear", ScoreRule::kLinear}};
inline constexpr std::array kGroupBys{Name<GroupBy>{"off", GroupBy::kOff},
                                      Name<GroupBy>{"block", GroupBy::kBlock},
                                      Name<GroupBy>{"placement", GroupBy::kPlacement}};
inline constexpr std::array kGroupTakes{Name<GroupTake>{"k", GroupTake::kTopK},
                                        Name<GroupTake>{"all", GroupTake::kAll}};

inline constexpr std::array kSoftRequests{Name<bool>{"keyword", false}, Name<bool>{"all", true}};
inline constexpr std::array kSoftCosts{Name<SoftCost>{"gathered", SoftCost::kGathered},
                                       Name<SoftCost>{"stacked", SoftCost::kStacked}};
inline constexpr std::array kBools{Name<bool>{"false", false}, Name<bool>{"true", true}};
inline constexpr std::array kSetRules{Name<SetRule>{"top_k", SetRule::kTopK},
                                      Name<SetRule>{"round_robin", SetRule::kRoundRobin},
                                      Name<SetRule>{"batch", SetRule::kBatch}};
inline constexpr std::array kPinnedRequests{Name<PinnedRequests>{"off", PinnedRequests::kOff},
                                            Name<PinnedRequests>{"named", PinnedRequests::kNamed},
                                            Name<PinnedRequests>{"all", PinnedRequests::kAll}};
inline constexpr std::array kFirstTiers{Name<FirstTier>{"off", FirstTier::kOff},
                                        Name<FirstTier>{"int4", FirstTier::kInt4},
                                        Name<FirstTier>{"rank", FirstTier::kRank}};
inline constexpr std::array kThirdExperts{Name<ThirdExpert>{"activate", ThirdExpert::kActivate},
                                          Name<ThirdExpert>{"choose", ThirdExpert::kChoose}};
inline constexpr std::array kRebalanceTargets{
    Name<RebalanceTarget>{"least_loaded", RebalanceTarget::kLeastLoaded},
    Name<RebalanceTarget>{"third", RebalanceTarget::kThird}};

}  // namespace switchyard::policy_names

import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from torch.nn import functional


def main():
    torch.manual_seed(11)
    model = UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    lr_scheduler = get_cosine_schedule_with_warmup(
        optimizer, num_warmup_steps=2, num_training_steps=4
    )
    train_dataloader = torch.utils.data.DataLoader(
        torch.rand(8, 1, 8, 8), batch_size=2, shuffle=True
    )

    model.train()
    for clean_images in train_dataloader:
        noise = torch.randn(clean_images.shape)
        timesteps = torch.randint(
            0,
            noise_scheduler.config.num_train_timesteps,
            (clean_images.shape[0],),
            dtype=torch.int64,
        )
        noisy_images = noise_scheduler.add_noise(clean_images, noise, timesteps)
        noise_pred = model(noisy_images, timesteps, return_dict=False)[0]
        loss = functional.mse_loss(noise_pred, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        print(loss.detach().item().hex(), lr_scheduler.get_last_lr()[0].hex())

    model.eval()
    image = torch.randn(1, 1, 8, 8)
    noise_scheduler.set_timesteps(2)
    for t in noise_scheduler.timesteps:
        with torch.no_grad():
            image = noise_scheduler.step(model(image, t).sample, t, image).prev_sample
    print(
        image.double().sum().item().hex(),
        sum(p.double().sum() for p in model.parameters()).item().hex(),
    )


if __name__ == "__main__":
    main()
